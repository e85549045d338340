import static dev.langchain4j.data.message.UserMessage.userMessage;

import dev.langchain4j.agent.tool.ToolSpecification;
import dev.langchain4j.data.message.ChatMessage;
import dev.langchain4j.data.message.SystemMessage;
import dev.langchain4j.data.message.ToolExecutionResultMessage;
import dev.langchain4j.data.segment.TextSegment;
import dev.langchain4j.exception.ModelNotFoundException;
import dev.langchain4j.exception.InvalidRequestException;
import dev.langchain4j.model.anthropic.AnthropicChatModel;
import dev.langchain4j.model.anthropic.AnthropicStreamingChatModel;
import dev.langchain4j.model.anthropic.AnthropicTokenUsage;
import dev.langchain4j.model.chat.ChatModel;
import dev.langchain4j.model.chat.StreamingChatModel;
import dev.langchain4j.model.chat.request.ChatRequest;
import dev.langchain4j.model.chat.request.ResponseFormat;
import dev.langchain4j.model.chat.request.ResponseFormatType;
import dev.langchain4j.model.chat.request.json.JsonObjectSchema;
import dev.langchain4j.model.chat.request.json.JsonSchema;
import dev.langchain4j.model.chat.response.ChatResponse;
import dev.langchain4j.model.chat.response.PartialResponse;
import dev.langchain4j.model.chat.response.PartialResponseContext;
import dev.langchain4j.model.chat.response.StreamingChatResponseHandler;
import dev.langchain4j.model.embedding.EmbeddingModel;
import dev.langchain4j.model.ollama.OllamaChatModel;
import dev.langchain4j.model.ollama.OllamaEmbeddingModel;
import dev.langchain4j.model.ollama.OllamaModels;
import dev.langchain4j.model.ollama.OllamaStreamingChatModel;
import dev.langchain4j.model.openai.OpenAiChatModel;
import dev.langchain4j.model.openai.OpenAiEmbeddingModel;
import dev.langchain4j.model.openai.OpenAiStreamingChatModel;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.function.Function;

/** LangChain4j, by each of its three ways to a server. */
final class LangchainClient {
  private static final ToolSpecification TOOL = ToolSpecification.builder()
      .name(Trials.weather.get("name").asText())
      .description(Trials.weather.get("description").asText())
      .parameters(JsonObjectSchema.builder().addStringProperty("city").required("city").additionalProperties(false).build())
      .build();

  private static List<Object> calls(ChatResponse response) throws Exception {
    var calls = new ArrayList<Object>();
    for (var call : response.aiMessage().toolExecutionRequests()) calls.add(Trials.decoded(call.arguments()));
    return calls;
  }

  /** What every way is tried with. */
  private static Map<String, Trials.Trial> trialsOf(Function<String, ChatModel> open, Function<String, StreamingChatModel> openStreaming) {
    var model = open.apply(Trials.model);
    var trials = new LinkedHashMap<String, Trials.Trial>();
    trials.put("chat", () -> {
      Trials.same(model.chat(Trials.question), Trials.answer);
      return "";
    });
    trials.put("system", () -> {
      Trials.same(model.chat(SystemMessage.from("You are Leo."), userMessage("Who are you?")).aiMessage().text(), "I am Leo.");
      return "";
    });
    trials.put("stream", () -> {
      var pieces = new ArrayList<String>();
      var end = new CompletableFuture<ChatResponse>();
      openStreaming.apply(Trials.model).chat(Trials.question, new StreamingChatResponseHandler() {
        @Override
        public void onPartialResponse(String piece) {
          pieces.add(piece);
        }

        @Override
        public void onCompleteResponse(ChatResponse response) {
          end.complete(response);
        }

        @Override
        public void onError(Throwable error) {
          end.completeExceptionally(error);
        }
      });
      Trials.same(end.get().aiMessage().text(), Trials.answer);
      return Trials.piecesOf(pieces);
    });
    trials.put("usage", () -> {
      var usage = model.chat(userMessage(Trials.question)).tokenUsage();
      Trials.same(List.of(usage.inputTokenCount(), usage.outputTokenCount()), List.of(19, 9));
      return "19 + 9 tokens";
    });
    trials.put("tools", () -> {
      var messages = new ArrayList<ChatMessage>(List.of(userMessage(Trials.askWeather)));
      var response = model.chat(ChatRequest.builder().messages(messages).toolSpecifications(TOOL).build());
      Trials.same(calls(response), Trials.PARIS);
      messages.add(response.aiMessage());
      messages.add(ToolExecutionResultMessage.from(response.aiMessage().toolExecutionRequests().get(0), "sunny"));
      var said = model.chat(ChatRequest.builder().messages(messages).toolSpecifications(TOOL).build());
      Trials.same(said.aiMessage().text(), Trials.sayWeather);
      return Trials.sayWeather;
    });
    trials.put("two_tools", () -> {
      var request = ChatRequest.builder().messages(userMessage(Trials.askTwo)).toolSpecifications(TOOL).build();
      Trials.same(calls(model.chat(request)), Trials.BOTH);
      return "Paris and Rome";
    });
    trials.put("schema", () -> {
      var report = JsonObjectSchema.builder()
          .addEnumProperty("city", List.of("Paris", "Rome"))
          .addBooleanProperty("warm")
          .addEnumProperty("rank", List.of("1", "2"))
          .required("city", "warm", "rank")
          .additionalProperties(false)
          .build();
      var format = ResponseFormat.builder()
          .type(ResponseFormatType.JSON)
          .jsonSchema(JsonSchema.builder().name("city_report").rootElement(report).build())
          .build();
      var request = ChatRequest.builder().messages(userMessage(Trials.question)).responseFormat(format).build();
      Trials.validReport(model.chat(request).aiMessage().text());
      return "responseFormat";
    });
    trials.put("not_found", () -> {
      Trials.failure(ModelNotFoundException.class, () -> open.apply("no/such").chat(Trials.question));
      return "ModelNotFoundException";
    });
    trials.put("context", () -> {
      Trials.failure(InvalidRequestException.class, () -> model.chat(Trials.tooLong));
      return "InvalidRequestException";
    });
    trials.put("cancel", () -> {
      var taken = new CountDownLatch(Trials.TAKEN);
      openStreaming.apply(Trials.endless).chat(Trials.question, new StreamingChatResponseHandler() {
        @Override
        public void onPartialResponse(PartialResponse piece, PartialResponseContext context) {
          taken.countDown();
          if (taken.getCount() == 0) context.streamingHandle().cancel();
        }

        @Override
        public void onCompleteResponse(ChatResponse response) {}

        @Override
        public void onError(Throwable error) {}
      });
      Trials.hold(taken.await(5, java.util.concurrent.TimeUnit.MINUTES), "the answer ended");
      return Trials.freed();
    });
    return trials;
  }

  private static Trials.Trial embeddings(EmbeddingModel model) {
    return () -> {
      var texts = List.of(TextSegment.from("red"), TextSegment.from("blue"), TextSegment.from("red"));
      return Trials.sameVectors(model.embedAll(texts).content().stream().map(one -> one.vectorAsList()).toList());
    };
  }

  static void run() throws Exception {
    var v1 = Trials.address + "/v1";
    var ollama = Trials.address + "/ollama";
    var hosted = trialsOf(
        name -> OpenAiChatModel.builder().baseUrl(v1).apiKey("any").modelName(name).temperature(0.0).strictJsonSchema(true).build(),
        name -> OpenAiStreamingChatModel.builder().baseUrl(v1).apiKey("any").modelName(name).temperature(0.0).build());
    hosted.put("embeddings", embeddings(OpenAiEmbeddingModel.builder().baseUrl(v1).apiKey("any").modelName(Trials.model).build()));
    Trials.report("langchain4j-open-ai", "langchain4j-open-ai", hosted);

    var ollamas = trialsOf(
        name -> OllamaChatModel.builder().baseUrl(ollama).modelName(name).temperature(0.0).build(),
        name -> OllamaStreamingChatModel.builder().baseUrl(ollama).modelName(name).temperature(0.0).build());
    ollamas.put("embeddings", embeddings(OllamaEmbeddingModel.builder().baseUrl(ollama).modelName(Trials.model).build()));
    ollamas.put("models", () -> {
      var models = OllamaModels.builder().baseUrl(ollama).build();
      var found = models.availableModels().content().stream().anyMatch(one -> one.getName().startsWith(Trials.model));
      Trials.hold(found, "the model is not in the list");
      Trials.hold(models.modelCard(Trials.model).content().getDetails() != null, "the card has no details");
      return "and its card";
    });
    Trials.report("langchain4j-ollama", "langchain4j-ollama", ollamas);

    Function<String, ChatModel> claudes =
        name -> AnthropicChatModel.builder().baseUrl(v1).apiKey("any").modelName(name).temperature(0.0).build();
    var claude = trialsOf(
        claudes,
        name -> AnthropicStreamingChatModel.builder().baseUrl(v1).apiKey("any").modelName(name).temperature(0.0).maxTokens(3500).build());
    claude.put("usage", () -> {
      // As this API has it, the tokens that the cache held are counted apart, and the prompt is the sum.
      var usage = (AnthropicTokenUsage) claudes.apply(Trials.model).chat(userMessage(Trials.question)).tokenUsage();
      var prompt = usage.inputTokenCount() + usage.cacheReadInputTokens() + usage.cacheCreationInputTokens();
      Trials.same(List.of(prompt, usage.outputTokenCount()), List.of(19, 9));
      return "19 + 9 tokens, including cached tokens";
    });
    Trials.report("langchain4j-anthropic", "langchain4j-anthropic", claude);
  }
}
