import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.regex.Pattern;

/** Programs that use a vendor's client as its users do, and say what became of it: lines of JSON as in ../trials.ts. */
final class Trials {
  static final ObjectMapper JSON = new ObjectMapper();
  static JsonNode place;
  private static JsonNode facts;

  static String address, model, endless, question, answer, askWeather, askTwo, sayWeather, picture, tooLong;
  static JsonNode weather, cityReport;
  static final List<Object> PARIS = List.of(Map.of("city", "Paris"));
  static final List<Object> BOTH = List.of(Map.of("city", "Paris"), Map.of("city", "Rome"));
  /** How many pieces are read of an answer of `endless`. */
  static final int TAKEN = 40;

  /** Gives a note for the table, and throws otherwise. */
  interface Trial {
    String run() throws Exception;
  }

  /** Runs the trials of one client, and prints what became of each. */
  static void report(String client, String artifact, Map<String, Trial> trials) throws Exception {
    for (var each : trials.entrySet()) {
      if (each.getKey().equals("wrong_key") && !place.has("strict")) continue;
      var line = new LinkedHashMap<String, String>();
      line.put("client", client);
      line.put("version", versionOf(artifact));
      line.put("language", "Java");
      line.put("feature", each.getKey());
      try {
        line.put("note", each.getValue().run());
        line.put("result", "works");
      } catch (Throwable failed) {
        var trace = new StringWriter();
        failed.printStackTrace(new PrintWriter(trace));
        line.put("note", trace.toString());
        line.put("result", "fails");
      }
      System.out.println(JSON.writeValueAsString(line));
    }
  }

  private static String versionOf(String artifact) {
    var jar = Pattern.compile("\\b" + artifact + "-(\\d[^/\\\\]*)\\.jar").matcher(System.getProperty("java.class.path"));
    hold(jar.find(), "no version of " + artifact);
    return jar.group(1);
  }

  static void hold(boolean held, String message) {
    if (!held) throw new AssertionError(message);
  }

  static void same(Object actual, Object expected) {
    hold(Objects.equals(actual, expected), actual + " is not " + expected);
  }

  interface Call {
    Object run() throws Exception;
  }

  /** What the call is refused with, which must be of that type. */
  static <E extends Throwable> E failure(Class<E> type, Call call) {
    try {
      call.run();
    } catch (Throwable error) {
      hold(type.isInstance(error), error + " is no " + type.getSimpleName());
      return type.cast(error);
    }
    throw new AssertionError("it was answered");
  }

  static Map<?, ?> decoded(String text) throws JsonProcessingException {
    return JSON.readValue(text, Map.class);
  }

  static String piecesOf(List<String> pieces) {
    same(String.join("", pieces), answer);
    var count = pieces.stream().filter(piece -> !piece.isEmpty()).count();
    hold(count > 4, "only " + count + " chunks");
    return count + " chunks";
  }

  /** Holds an object to CITY_REPORT. */
  static void validReport(String text) throws JsonProcessingException {
    var report = decoded(text);
    var valid = report.keySet().equals(Set.of("city", "warm", "rank"))
        && List.of("Paris", "Rome").contains(report.get("city"))
        && List.of("1", "2").contains(report.get("rank"))
        && report.get("warm") instanceof Boolean;
    hold(valid, text);
  }

  /** For the texts red, blue and red again. */
  static String sameVectors(List<? extends List<? extends Number>> vectors) {
    same(vectors.size(), 3);
    same(vectors.get(0).size(), facts.get("DIMENSION").asInt());
    hold(distance(vectors.get(0), vectors.get(2)) < 1e-5 && distance(vectors.get(0), vectors.get(1)) > 1e-2, "wrong vectors");
    return vectors.get(0).size() + " dimensions; equal texts have equal vectors";
  }

  private static double distance(List<? extends Number> one, List<? extends Number> other) {
    var most = 0.0;
    for (var index = 0; index < one.size(); index++) {
      most = Math.max(most, Math.abs(one.get(index).doubleValue() - other.get(index).doubleValue()));
    }
    return most;
  }

  /** Waits until the server runs nothing of `endless` any more: long before its answer would have ended. */
  static String freed() throws Exception {
    var http = HttpClient.newHttpClient();
    var request = HttpRequest.newBuilder(URI.create(address + "/api/ps")).build();
    var left = System.nanoTime();
    while (true) {
      var running = 0;
      for (var loaded : JSON.readTree(http.send(request, BodyHandlers.ofString()).body()).get("models")) {
        if (loaded.get("name").asText().equals(endless)) running += loaded.get("running").asInt();
      }
      if (running == 0) return "its slot is free immediately";
      var waited = (System.nanoTime() - left) / 1e6;
      hold(waited < place.get("leavingLimit").asDouble(), "the answer still runs after its reader left");
      Thread.sleep(10);
    }
  }

  interface Asking {
    String at(String address) throws Exception;
  }

  /** Asks at other forms of the base address: what follows host and port. */
  static String forms(Asking ask, String... endings) throws Exception {
    var words = new ArrayList<String>();
    for (var ending : endings) {
      same(ask.at(address + ending), answer);
      words.add(ending.isEmpty() ? "nothing" : "`" + ending + "`");
    }
    return "with " + String.join(", ", words) + " after host and port";
  }

  public static void main(String[] arguments) throws Exception {
    var given = JSON.readTree(System.in);
    place = given.get("place");
    facts = given.get("facts");
    address = place.get("address").asText();
    model = facts.get("MODEL").asText();
    endless = facts.get("ENDLESS").asText();
    question = facts.get("QUESTION").asText();
    answer = facts.get("ANSWER").asText();
    askWeather = facts.get("ASK_WEATHER").asText();
    askTwo = facts.get("ASK_TWO").asText();
    sayWeather = facts.get("SAY_WEATHER").asText();
    picture = facts.get("PNG").asText();
    tooLong = facts.get("LONG").asText();
    weather = facts.get("WEATHER");
    cityReport = facts.get("CITY_REPORT");
    OpenaiClient.run();
    ClaudeClient.run();
    LangchainClient.run();
    Ollama4jClient.run();
    // Clients leave threads behind that would go on.
    System.exit(0);
  }
}
