import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.JsonValue;
import com.openai.errors.BadRequestException;
import com.openai.errors.NotFoundException;
import com.openai.errors.OpenAIServiceException;
import com.openai.errors.UnauthorizedException;
import com.openai.helpers.ChatCompletionAccumulator;
import com.openai.models.FunctionDefinition;
import com.openai.models.FunctionParameters;
import com.openai.models.ResponseFormatJsonSchema;
import com.openai.models.chat.completions.ChatCompletion;
import com.openai.models.chat.completions.ChatCompletionContentPart;
import com.openai.models.chat.completions.ChatCompletionContentPartImage;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionFunctionTool;
import com.openai.models.chat.completions.ChatCompletionMessage;
import com.openai.models.chat.completions.ChatCompletionStreamOptions;
import com.openai.models.chat.completions.ChatCompletionToolMessageParam;
import com.openai.models.embeddings.Embedding;
import com.openai.models.embeddings.EmbeddingCreateParams;
import com.openai.models.responses.Response;
import com.openai.models.responses.ResponseCreateParams;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;

/** The vendor's own client. */
final class OpenaiClient {
  private static OpenAIClient open(String base, String key) {
    return OpenAIOkHttpClient.builder().baseUrl(base).apiKey(key).build();
  }

  private static final OpenAIClient client = open(Trials.address + "/v1", "any");

  private static ChatCompletionCreateParams.Builder greedy() {
    return ChatCompletionCreateParams.builder().model(Trials.model).temperature(0);
  }

  private static ChatCompletionCreateParams.Builder withTool(String text) {
    var parameters = FunctionParameters.builder();
    Trials.weather.get("parameters").fields()
        .forEachRemaining(field -> parameters.putAdditionalProperty(field.getKey(), JsonValue.fromJsonNode(field.getValue())));
    var function = FunctionDefinition.builder()
        .name(Trials.weather.get("name").asText())
        .description(Trials.weather.get("description").asText())
        .parameters(parameters.build());
    return greedy().addUserMessage(text).addTool(ChatCompletionFunctionTool.builder().function(function.build()).build());
  }

  private static ChatCompletion ask(ChatCompletionCreateParams.Builder params) {
    return client.chat().completions().create(params.build());
  }

  private static ChatCompletionMessage message(ChatCompletion reply) {
    return reply.choices().get(0).message();
  }

  private static String text(ChatCompletion reply) {
    return message(reply).content().orElseThrow();
  }

  private static List<Object> calls(ChatCompletion reply) throws Exception {
    var calls = new ArrayList<Object>();
    for (var call : message(reply).toolCalls().orElse(List.of())) {
      calls.add(Trials.decoded(call.asFunction().function().arguments()));
    }
    return calls;
  }

  private static ChatCompletion streamed(ChatCompletionCreateParams.Builder params, List<String> pieces) {
    var whole = ChatCompletionAccumulator.create();
    try (var stream = client.chat().completions().createStreaming(params.build())) {
      stream.stream().forEach(chunk -> {
        whole.accumulate(chunk);
        chunk.choices().forEach(choice -> choice.delta().content().ifPresent(pieces::add));
      });
    }
    return whole.chatCompletion();
  }

  /** The refusal of a request, whole and streamed. */
  private static String fails(Class<? extends OpenAIServiceException> type, ChatCompletionCreateParams.Builder params) {
    var code = Trials.failure(type, () -> ask(params)).code();
    Trials.same(Trials.failure(type, () -> streamed(params, new ArrayList<>())).code(), code);
    return type.getSimpleName() + ", " + code.orElseThrow();
  }

  private static String outputText(Response response) {
    var text = new StringBuilder();
    response.output().forEach(item -> item.message()
        .ifPresent(message -> message.content().forEach(part -> part.outputText().ifPresent(piece -> text.append(piece.text())))));
    return text.toString();
  }

  static void run() throws Exception {
    var trials = new LinkedHashMap<String, Trials.Trial>();
    trials.put("models", () -> {
      var found = client.models().list().autoPager().stream().anyMatch(one -> one.id().equals(Trials.model));
      Trials.hold(found, "the model is not in the list");
      Trials.same(client.models().retrieve(Trials.model).id(), Trials.model);
      return "and one by its id";
    });
    trials.put("chat", () -> {
      Trials.same(text(ask(greedy().addUserMessage(Trials.question))), Trials.answer);
      return "";
    });
    trials.put("system", () -> {
      Trials.same(text(ask(greedy().addSystemMessage("You are Leo.").addUserMessage("Who are you?"))), "I am Leo.");
      var turns = greedy().addUserMessage("My name is Rosa.").addAssistantMessage("Nice to meet you, Rosa!");
      Trials.same(text(ask(turns.addUserMessage("What is my name?"))), "Your name is Rosa.");
      return "";
    });
    trials.put("stream", () -> {
      var pieces = new ArrayList<String>();
      Trials.same(text(streamed(greedy().addUserMessage(Trials.question), pieces)), Trials.answer);
      return Trials.piecesOf(pieces) + "; the accumulator too";
    });
    trials.put("usage", () -> {
      var options = ChatCompletionStreamOptions.builder().includeUsage(true).build();
      var whole = ask(greedy().addUserMessage(Trials.question));
      var parts = streamed(greedy().addUserMessage(Trials.question).streamOptions(options), new ArrayList<>());
      for (var reply : List.of(whole, parts)) {
        var usage = reply.usage().orElseThrow();
        Trials.same(List.of(usage.promptTokens(), usage.completionTokens()), List.of(19L, 9L));
      }
      return "whole and streamed: 19 + 9 tokens";
    });
    trials.put("stop", () -> {
      Trials.same(text(ask(greedy().addUserMessage(Trials.question).stop(" of France"))), "The capital");
      var few = ask(greedy().addUserMessage(Trials.question).maxCompletionTokens(4));
      Trials.same(few.choices().get(0).finishReason().asString(), "length");
      return "";
    });
    trials.put("tools", () -> {
      var params = withTool(Trials.askWeather);
      var reply = ask(params);
      Trials.same(calls(reply), Trials.PARIS);
      var id = message(reply).toolCalls().orElseThrow().get(0).asFunction().id();
      var result = ChatCompletionToolMessageParam.builder().toolCallId(id).content("sunny").build();
      Trials.same(text(ask(params.addMessage(message(reply)).addMessage(result))), Trials.sayWeather);
      return Trials.sayWeather;
    });
    trials.put("two_tools", () -> {
      Trials.same(calls(ask(withTool(Trials.askTwo))), Trials.BOTH);
      return "Paris and Rome";
    });
    trials.put("streamed_tools", () -> {
      Trials.same(calls(streamed(withTool(Trials.askTwo), new ArrayList<>())), Trials.BOTH);
      return "two, assembled by the accumulator";
    });
    trials.put("schema", () -> {
      var schema = ResponseFormatJsonSchema.JsonSchema.Schema.builder();
      Trials.cityReport.fields()
          .forEachRemaining(field -> schema.putAdditionalProperty(field.getKey(), JsonValue.fromJsonNode(field.getValue())));
      var named = ResponseFormatJsonSchema.JsonSchema.builder().name("city_report").schema(schema.build()).strict(true).build();
      var format = ResponseFormatJsonSchema.builder().jsonSchema(named).build();
      Trials.validReport(text(ask(greedy().addUserMessage(Trials.question).responseFormat(format))));
      return "response_format";
    });
    trials.put("embeddings", () -> {
      var params = EmbeddingCreateParams.builder().model(Trials.model).inputOfArrayOfStrings(List.of("red", "blue", "red"));
      return Trials.sameVectors(client.embeddings().create(params.build()).data().stream().map(Embedding::embedding).toList());
    });
    trials.put("responses", () -> {
      var params = ResponseCreateParams.builder().model(Trials.model).temperature(0.0).input(Trials.question).build();
      Trials.same(outputText(client.responses().create(params)), Trials.answer);
      return "text";
    });
    trials.put("streamed_responses", () -> {
      var params = ResponseCreateParams.builder().model(Trials.model).temperature(0.0).input(Trials.question).build();
      var pieces = new ArrayList<String>();
      var ends = new ArrayList<Response>();
      try (var stream = client.responses().createStreaming(params)) {
        stream.stream().forEach(event -> {
          event.outputTextDelta().ifPresent(delta -> pieces.add(delta.delta()));
          event.completed().ifPresent(end -> ends.add(end.response()));
        });
      }
      Trials.same(outputText(ends.get(0)), Trials.answer);
      return Trials.piecesOf(pieces);
    });
    trials.put("images", () -> {
      var url = ChatCompletionContentPartImage.ImageUrl.builder().url("data:image/png;base64," + Trials.picture).build();
      var image = ChatCompletionContentPart.ofImageUrl(ChatCompletionContentPartImage.builder().imageUrl(url).build());
      return fails(BadRequestException.class, greedy().addUserMessageOfArrayOfContentParts(List.of(image)));
    });
    trials.put("not_found", () -> fails(NotFoundException.class, greedy().addUserMessage(Trials.question).model("no/such")));
    trials.put("context", () -> fails(BadRequestException.class, greedy().addUserMessage(Trials.tooLong)));
    trials.put("wrong_key", () -> {
      var strict = Trials.place.get("strict");
      var base = strict.get("address").asText() + "/v1";
      Trials.failure(UnauthorizedException.class, () -> open(base, "wrong").models().list());
      open(base, strict.get("key").asText()).models().list();
      return "UnauthorizedException; the right key works";
    });
    trials.put("cancel", () -> {
      var params = greedy().model(Trials.endless).addUserMessage(Trials.question).build();
      try (var stream = client.chat().completions().createStreaming(params)) {
        Trials.same(stream.stream().limit(Trials.TAKEN).count(), (long) Trials.TAKEN);
      }
      return Trials.freed();
    });
    trials.put("addresses", () -> Trials.forms(
        base -> text(open(base, "any").chat().completions().create(greedy().addUserMessage(Trials.question).build())),
        "/v1/", "", "/"));
    Trials.report("openai-java", "openai-java", trials);
  }
}
