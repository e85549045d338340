// Programs that use a vendor's client as its users do, and say what became of it: lines of JSON as in ../trials.ts.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"time"
)

// What stands in ../trials.ts.
type facts struct {
	MODEL, ENDLESS, QUESTION, ANSWER, ASK_WEATHER, ASK_TWO, SAY_WEATHER, JSON_SYSTEM, PNG, LONG string
	DIMENSION                                                                                   int
	WEATHER                                                                                     struct {
		Name        string
		Description string
		Parameters  map[string]any
	}
	CITY_REPORT map[string]any
}

type place struct {
	Address      string
	LeavingLimit float64
	// A server that asks for a key and has no room for models; nil where the address came from outside.
	Strict *struct{ Address, Key string }
	// Where Ollama's clients find their profile without a path; empty likewise.
	Listener string
	// A model that ranks, with random weights; empty likewise.
	Ranker string
}

var at place
var the facts

// A trial gives a note for the table, and panics otherwise.
type trial func() string

type tried struct {
	feature string
	trial   trial
}

// report runs the trials of one client, and prints what became of each. The first package gives the client its name;
// way says which of its ways to a server it takes, where it has several.
func report(name, way, module string, trials []tried) {
	if way != "" {
		name += " (" + way + ")"
	}
	for _, one := range trials {
		if (one.feature == "wrong_key" || one.feature == "no_retries") && at.Strict == nil {
			continue
		}
		if one.feature == "listener" && at.Listener == "" {
			continue
		}
		result, note := run(one.trial)
		line := map[string]string{
			"client": name, "version": versionOf(module), "language": "Go",
			"feature": one.feature, "result": result, "note": note,
		}
		if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
			panic(err)
		}
	}
}

func run(trial trial) (result, note string) {
	defer func() {
		if failed := recover(); failed != nil {
			result, note = "fails", fmt.Sprintf("%v\n%s", failed, debug.Stack())
		}
	}()
	return "works", trial()
}

func versionOf(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return strings.TrimPrefix(dependency.Version, "v")
		}
	}
	panic("no version of " + module)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func hold(held bool, message string, args ...any) {
	if !held {
		panic(fmt.Sprintf(message, args...))
	}
}

func same(actual, expected any) {
	hold(reflect.DeepEqual(actual, expected), "%#v is not %#v", actual, expected)
}

// failure finds the error of that type, which there must be.
func failure[E error](err error) E {
	hold(err != nil, "it was answered")
	var found E
	hold(errors.As(err, &found), "%T is of another type: %v", err, err)
	return found
}

func decoded[T any](text string) T {
	var value T
	check(json.Unmarshal([]byte(text), &value))
	return value
}

var paris = []map[string]any{{"city": "Paris"}}
var both = []map[string]any{{"city": "Paris"}, {"city": "Rome"}}

func piecesOf(pieces []string) string {
	count := 0
	for _, piece := range pieces {
		if piece != "" {
			count++
		}
	}
	same(strings.Join(pieces, ""), the.ANSWER)
	hold(count > 4, "only %d chunks", count)
	return fmt.Sprintf("%d chunks", count)
}

// validReport holds an object to CITY_REPORT.
func validReport(text string) {
	report := decoded[map[string]any](text)
	_, warm := report["warm"].(bool)
	city, rank := report["city"], report["rank"]
	hold(len(report) == 3 && warm && (city == "Paris" || city == "Rome") && (rank == "1" || rank == "2"), "%s", text)
}

// sameVectors is for the texts red, blue and red again.
func sameVectors[Number float32 | float64](vectors [][]Number) string {
	same(len(vectors), 3)
	red, blue, again := vectors[0], vectors[1], vectors[2]
	same(len(red), the.DIMENSION)
	distance := func(other []Number) (most float64) {
		for index, value := range red {
			most = math.Max(most, math.Abs(float64(value-other[index])))
		}
		return
	}
	hold(distance(again) < 1e-5 && distance(blue) > 1e-2, "the vectors are wrong")
	return fmt.Sprintf("%d dimensions; equal texts have equal vectors", the.DIMENSION)
}

// How many pieces are read of an answer of ENDLESS.
const taken = 40

// freed waits until the server runs nothing of ENDLESS any more: long before its answer would have ended.
func freed() string {
	left := time.Now()
	for running() > 0 {
		waited := float64(time.Since(left).Milliseconds())
		hold(waited < at.LeavingLimit, "the answer still runs after its reader left")
		time.Sleep(10 * time.Millisecond)
	}
	return "its slot is free immediately"
}

func running() (count int) {
	reply := must(http.Get(at.Address + "/api/ps"))
	defer reply.Body.Close()
	var loaded struct {
		Models []struct {
			Name    string
			Running int
		}
	}
	check(json.NewDecoder(reply.Body).Decode(&loaded))
	for _, model := range loaded.Models {
		if model.Name == the.ENDLESS {
			count += model.Running
		}
	}
	return
}

// countingTransport counts requests.
type countingTransport struct{ count int }

func (counting *countingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	counting.count++
	return http.DefaultTransport.RoundTrip(request)
}

func main() {
	var given struct {
		Place place
		Facts facts
	}
	check(json.NewDecoder(os.Stdin).Decode(&given))
	at, the = given.Place, given.Facts
	tryOpenai()
	tryAnthropic()
	tryOllama()
	tryGoOpenai()
	tryLangchaingo()
	tryCohere()
}

// forms asks at other forms of the base address: what follows host and port.
func forms(ask func(address string) string, endings ...string) string {
	words := make([]string, len(endings))
	for index, ending := range endings {
		same(ask(at.Address+ending), the.ANSWER)
		words[index] = "`" + ending + "`"
		if ending == "" {
			words[index] = "nothing"
		}
	}
	return "with " + strings.Join(words, ", ") + " after host and port"
}
