import com.anthropic.client.AnthropicClient;
import com.anthropic.client.okhttp.AnthropicOkHttpClient;
import com.anthropic.core.JsonValue;
import com.anthropic.errors.AnthropicServiceException;
import com.anthropic.errors.BadRequestException;
import com.anthropic.errors.NotFoundException;
import com.anthropic.errors.UnauthorizedException;
import com.anthropic.helpers.MessageAccumulator;
import com.anthropic.models.messages.Base64ImageSource;
import com.anthropic.models.messages.ContentBlockParam;
import com.anthropic.models.messages.JsonOutputFormat;
import com.anthropic.models.messages.Message;
import com.anthropic.models.messages.MessageCountTokensParams;
import com.anthropic.models.messages.MessageCreateParams;
import com.anthropic.models.messages.OutputConfig;
import com.anthropic.models.messages.Tool;
import com.anthropic.models.messages.ToolResultBlockParam;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Anthropic's own client. */
final class ClaudeClient {
  private static AnthropicClient open(String base, String key) {
    return AnthropicOkHttpClient.builder().baseUrl(base).apiKey(key).build();
  }

  private static final AnthropicClient client = open(Trials.address, "any");

  private static MessageCreateParams.Builder greedy() {
    // This client has no temperature any more.
    return MessageCreateParams.builder().model(Trials.model).maxTokens(100).putAdditionalBodyProperty("temperature", JsonValue.from(0));
  }

  private static MessageCreateParams.Builder withTool(String text) {
    var parameters = Trials.weather.get("parameters");
    var properties = Tool.InputSchema.Properties.builder();
    parameters.get("properties").fields()
        .forEachRemaining(field -> properties.putAdditionalProperty(field.getKey(), JsonValue.fromJsonNode(field.getValue())));
    var schema = Tool.InputSchema.builder().properties(properties.build()).required(List.of("city")).build();
    return greedy().addUserMessage(text).addTool(Tool.builder()
        .name(Trials.weather.get("name").asText())
        .description(Trials.weather.get("description").asText())
        .inputSchema(schema)
        .build());
  }

  private static Message ask(MessageCreateParams.Builder params) {
    return client.messages().create(params.build());
  }

  private static String text(Message message) {
    return message.content().stream().flatMap(block -> block.text().stream()).map(block -> block.text()).collect(Collectors.joining());
  }

  private static List<Object> calls(Message message) {
    return message.content().stream()
        .flatMap(block -> block.toolUse().stream())
        .<Object>map(use -> use._input().convert(Map.class))
        .toList();
  }

  private static Message streamed(MessageCreateParams.Builder params, List<String> pieces) {
    var whole = MessageAccumulator.create();
    try (var stream = client.messages().createStreaming(params.build())) {
      stream.stream().forEach(event -> {
        whole.accumulate(event);
        event.contentBlockDelta().flatMap(delta -> delta.delta().text()).ifPresent(delta -> pieces.add(delta.text()));
      });
    }
    return whole.message();
  }

  private static String fails(Class<? extends AnthropicServiceException> type, MessageCreateParams.Builder params) {
    var kind = Trials.failure(type, () -> ask(params)).errorType().orElseThrow();
    Trials.same(Trials.failure(type, () -> streamed(params, new ArrayList<>())).errorType().orElseThrow(), kind);
    return type.getSimpleName() + ", " + kind;
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
      Trials.same(text(ask(greedy().system("You are Leo.").addUserMessage("Who are you?"))), "I am Leo.");
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
      var params = greedy().addUserMessage(Trials.question);
      for (var message : List.of(ask(params), streamed(params, new ArrayList<>()))) {
        var usage = message.usage();
        Trials.same(List.of(usage.inputTokens() + usage.cacheReadInputTokens().orElse(0L), usage.outputTokens()), List.of(19L, 9L));
      }
      return "whole and streamed: 19 + 9 tokens, including cached tokens";
    });
    trials.put("tools", () -> {
      var params = withTool(Trials.askWeather);
      var message = ask(params);
      Trials.same(calls(message), Trials.PARIS);
      var id = message.content().stream().flatMap(block -> block.toolUse().stream()).findFirst().orElseThrow().id();
      var result = ToolResultBlockParam.builder().toolUseId(id).content("sunny").build();
      params.addMessage(message).addUserMessageOfContentBlockParams(List.of(ContentBlockParam.ofToolResult(result)));
      Trials.same(text(ask(params)), Trials.sayWeather);
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
      var schema = JsonOutputFormat.Schema.builder();
      Trials.cityReport.fields()
          .forEachRemaining(field -> schema.putAdditionalProperty(field.getKey(), JsonValue.fromJsonNode(field.getValue())));
      var format = JsonOutputFormat.builder().schema(schema.build()).build();
      var config = OutputConfig.builder().format(format).build();
      Trials.validReport(text(ask(greedy().addUserMessage(Trials.question).outputConfig(config))));
      return "output_config";
    });
    trials.put("count_tokens", () -> {
      var params = MessageCountTokensParams.builder().model(Trials.model).addUserMessage(Trials.question).build();
      Trials.same(client.messages().countTokens(params).inputTokens(), 19L);
      return "19 tokens, as in the answer";
    });
    trials.put("images", () -> {
      var image = Base64ImageSource.builder().data(Trials.picture).mediaType(Base64ImageSource.MediaType.IMAGE_PNG).build();
      return fails(BadRequestException.class, greedy().addUserMessageOfContentBlockParams(List.of(ContentBlockParam.ofImage(image))));
    });
    trials.put("not_found", () -> fails(NotFoundException.class, greedy().addUserMessage(Trials.question).model("no/such")));
    trials.put("context", () -> fails(BadRequestException.class, greedy().addUserMessage(Trials.tooLong)));
    trials.put("wrong_key", () -> {
      var strict = Trials.place.get("strict");
      var base = strict.get("address").asText();
      Trials.failure(UnauthorizedException.class, () -> open(base, "wrong").models().list());
      open(base, strict.get("key").asText()).models().list();
      return "UnauthorizedException; the right key works";
    });
    trials.put("cancel", () -> {
      var params = greedy().model(Trials.endless).maxTokens(3500).addUserMessage(Trials.question).build();
      try (var stream = client.messages().createStreaming(params)) {
        Trials.same(stream.stream().limit(Trials.TAKEN).count(), (long) Trials.TAKEN);
      }
      return Trials.freed();
    });
    trials.put("addresses", () -> Trials.forms(
        base -> text(open(base, "any").messages().create(greedy().addUserMessage(Trials.question).build())),
        "/", "/anthropic", "/anthropic/"));
    Trials.report("anthropic-java", "anthropic-java", trials);
  }
}
