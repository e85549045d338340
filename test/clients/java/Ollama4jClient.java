import io.github.ollama4j.Ollama;
import io.github.ollama4j.exceptions.OllamaException;
import io.github.ollama4j.models.chat.OllamaChatMessageRole;
import io.github.ollama4j.models.chat.OllamaChatRequest;
import io.github.ollama4j.models.embed.OllamaEmbedRequest;
import io.github.ollama4j.tools.Tools;
import io.github.ollama4j.utils.OptionsBuilder;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** ollama4j, which runs tools by itself. */
final class Ollama4jClient {
  private static Ollama open() {
    var client = new Ollama(Trials.address + "/ollama");
    client.setRequestTimeoutSeconds(600);
    return client;
  }

  private static OllamaChatRequest greedy(String text) {
    return OllamaChatRequest.builder()
        .withModel(Trials.model)
        .withOptions(new OptionsBuilder().setTemperature(0).build())
        .withMessage(OllamaChatMessageRole.USER, text);
  }

  static void run() throws Exception {
    var client = open();
    var trials = new LinkedHashMap<String, Trials.Trial>();
    trials.put("models", () -> {
      Trials.hold(client.ping() && client.getVersion() != null, "no ping");
      var found = client.listModels().stream().anyMatch(one -> one.getName().startsWith(Trials.model));
      Trials.hold(found, "the model is not in the list");
      return "and ping, version";
    });
    trials.put("chat", () -> {
      Trials.same(client.chat(greedy(Trials.question).build(), null).getResponseModel().getMessage().getResponse(), Trials.answer);
      return "";
    });
    trials.put("stream", () -> {
      var pieces = new ArrayList<String>();
      client.chat(greedy(Trials.question).withStreaming().build(), part -> {
        if (part.getMessage() != null && part.getMessage().getResponse() != null) pieces.add(part.getMessage().getResponse());
      });
      return Trials.piecesOf(pieces);
    });
    trials.put("usage", () -> {
      var reply = client.chat(greedy(Trials.question).build(), null).getResponseModel();
      Trials.same(List.of(reply.getPromptEvalCount(), reply.getEvalCount()), List.of(19, 9));
      return "19 + 9 tokens";
    });
    trials.put("tools", () -> {
      var asked = new ArrayList<Object>();
      var city = Tools.Property.builder().type("string").description("the city").required(true).build();
      var spec = Tools.ToolSpec.builder()
          .name(Trials.weather.get("name").asText())
          .description(Trials.weather.get("description").asText())
          .parameters(Tools.Parameters.of(Map.of("city", city)))
          .build();
      var tooled = open();
      tooled.registerTool(Tools.Tool.builder().toolSpec(spec).toolFunction(given -> {
        asked.add(given);
        return "sunny";
      }).build());
      var reply = tooled.chat(greedy(Trials.askWeather).withUseTools(true).build(), null);
      Trials.same(asked, Trials.PARIS);
      Trials.hold(reply.getResponseModel().getMessage().getResponse().contains("sunny"), reply.toString());
      return "run by the client itself";
    });
    trials.put("embeddings", () -> {
      var reply = client.embed(new OllamaEmbedRequest(Trials.model, List.of("red", "blue", "red")));
      return Trials.sameVectors(reply.getEmbeddings());
    });
    trials.put("show", () -> {
      Trials.hold(client.getModelDetails(Trials.model).getDetails() != null, "no details");
      return "details";
    });
    trials.put("pull", () -> {
      client.pullModel(Trials.model);
      return "of an installed model";
    });
    trials.put("running", () -> {
      client.chat(greedy(Trials.question).build(), null);
      var running = client.ps().getModels();
      Trials.hold(running.stream().anyMatch(one -> one.getName().startsWith(Trials.model)), running.toString());
      return "";
    });
    trials.put("not_found", () -> {
      var refusal = Trials.failure(OllamaException.class, () -> client.chat(greedy(Trials.question).withModel("no/such").build(), null));
      Trials.hold(String.valueOf(refusal.getCause()).concat(refusal.getMessage()).contains("no/such"), refusal.toString());
      return "OllamaException, which names the model";
    });
    Trials.report("ollama4j", "ollama4j", trials);
  }
}
