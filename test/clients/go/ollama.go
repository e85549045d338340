package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/ollama/ollama/api"
)

func tryOllama() {
	ctx := context.Background()
	open := func(address string) *api.Client { return api.NewClient(must(url.Parse(address)), http.DefaultClient) }
	client := open(at.Address + "/ollama")
	zero := map[string]any{"temperature": 0}
	whole := false
	said := func(text string) []api.Message { return []api.Message{{Role: "user", Content: text}} }
	// The pieces of an answer, and its last part.
	ask := func(client *api.Client, request *api.ChatRequest) (pieces []string, last api.ChatResponse, err error) {
		if request.Model == "" {
			request.Model = the.MODEL
		}
		if request.Options == nil {
			request.Options = zero
		}
		err = client.Chat(ctx, request, func(part api.ChatResponse) error {
			pieces = append(pieces, part.Message.Content)
			if len(part.Message.ToolCalls) == 0 {
				part.Message.ToolCalls = last.Message.ToolCalls
			} else {
				part.Message.ToolCalls = append(last.Message.ToolCalls, part.Message.ToolCalls...)
			}
			last = part
			return nil
		})
		return
	}
	answer := func(request *api.ChatRequest) api.ChatResponse {
		request.Stream = &whole
		_, last, err := ask(client, request)
		check(err)
		return last
	}
	tool := decoded[api.Tool](string(must(json.Marshal(map[string]any{
		"type": "function",
		"function": map[string]any{
			"name": the.WEATHER.Name, "description": the.WEATHER.Description, "parameters": the.WEATHER.Parameters,
		},
	}))))
	callsOf := func(message api.Message) (calls []map[string]any) {
		for _, call := range message.ToolCalls {
			same(call.Function.Name, the.WEATHER.Name)
			calls = append(calls, call.Function.Arguments.ToMap())
		}
		return
	}
	fails := func(status int, request *api.ChatRequest) string {
		_, _, err := ask(client, request)
		same(failure[api.StatusError](err).StatusCode, status)
		return fmt.Sprintf("api.StatusError, status %d", status)
	}

	report("ollama/api", "", "github.com/ollama/ollama", []tried{
		{"models", func() string {
			for _, model := range must(client.List(ctx)).Models {
				if model.Name == the.MODEL || model.Name == the.MODEL+":latest" {
					hold(!model.ModifiedAt.IsZero() && model.Size > 0 && model.Digest != "", "%+v", model)
					return ""
				}
			}
			panic("the model is not in the list")
		}},
		{"chat", func() string {
			reply := answer(&api.ChatRequest{Messages: said(the.QUESTION)})
			same([]string{reply.Message.Content, reply.DoneReason}, []string{the.ANSWER, "stop"})
			return ""
		}},
		{"system", func() string {
			reply := answer(&api.ChatRequest{Messages: append([]api.Message{{Role: "system", Content: "You are Leo."}}, said("Who are you?")...)})
			same(reply.Message.Content, "I am Leo.")
			return ""
		}},
		{"stream", func() string {
			pieces, last, err := ask(client, &api.ChatRequest{Messages: said(the.QUESTION)})
			check(err)
			hold(last.Done, "the last part is not the end")
			return piecesOf(pieces)
		}},
		{"usage", func() string {
			reply := answer(&api.ChatRequest{Messages: said(the.QUESTION)})
			same([]int{reply.PromptEvalCount, reply.EvalCount}, []int{19, 9})
			hold(reply.TotalDuration > 0 && reply.EvalDuration > 0 && reply.TotalDuration >= reply.EvalDuration, "%+v", reply.Metrics)
			return "19 + 9 tokens, durations in nanoseconds"
		}},
		{"stop", func() string {
			stop := map[string]any{"temperature": 0, "stop": []string{" of France"}}
			same(answer(&api.ChatRequest{Messages: said(the.QUESTION), Options: stop}).Message.Content, "The capital")
			few := map[string]any{"temperature": 0, "num_predict": 4}
			same(answer(&api.ChatRequest{Messages: said(the.QUESTION), Options: few}).DoneReason, "length")
			return ""
		}},
		{"logprobs", func() string {
			reply := answer(&api.ChatRequest{Messages: said(the.QUESTION), Logprobs: true, TopLogprobs: 2})
			text := ""
			for _, token := range reply.Logprobs {
				text += token.Token
				hold(token.Logprob <= 0 && len(token.TopLogprobs) == 2, "%+v", token)
			}
			same(text, the.ANSWER)
			return "with two alternatives each"
		}},
		{"completions", func() string {
			text := ""
			check(client.Generate(ctx, &api.GenerateRequest{Model: the.MODEL, Prompt: the.QUESTION, Options: zero}, func(part api.GenerateResponse) error {
				text += part.Response
				return nil
			}))
			same(text, the.ANSWER)
			return "generate, streamed"
		}},
		{"load", func() string {
			for _, reason := range []string{"load", "unload"} {
				request := &api.GenerateRequest{Model: the.MODEL, Stream: &whole}
				if reason == "unload" {
					request.KeepAlive = &api.Duration{}
				}
				check(client.Generate(ctx, request, func(part api.GenerateResponse) error {
					same(part.DoneReason, reason)
					return nil
				}))
			}
			return "with empty prompts and keep_alive: 0"
		}},
		{"tools", func() string {
			messages := said(the.ASK_WEATHER)
			reply := answer(&api.ChatRequest{Messages: messages, Tools: api.Tools{tool}})
			same(callsOf(reply.Message), paris)
			messages = append(messages, reply.Message, api.Message{Role: "tool", ToolName: the.WEATHER.Name, Content: "sunny"})
			same(answer(&api.ChatRequest{Messages: messages, Tools: api.Tools{tool}}).Message.Content, the.SAY_WEATHER)
			return the.SAY_WEATHER
		}},
		{"two_tools", func() string {
			same(callsOf(answer(&api.ChatRequest{Messages: said(the.ASK_TWO), Tools: api.Tools{tool}}).Message), both)
			return "Paris and Rome"
		}},
		{"streamed_tools", func() string {
			_, last, err := ask(client, &api.ChatRequest{Messages: said(the.ASK_TWO), Tools: api.Tools{tool}})
			check(err)
			same(callsOf(last.Message), both)
			return "Paris and Rome, each whole"
		}},
		{"json", func() string {
			messages := append([]api.Message{{Role: "system", Content: the.JSON_SYSTEM}}, said(the.ASK_WEATHER)...)
			text := answer(&api.ChatRequest{Messages: messages, Format: json.RawMessage(`"json"`)}).Message.Content
			same(decoded[map[string]any](text)["arguments"], map[string]any{"city": "Paris"})
			return ""
		}},
		{"schema", func() string {
			schema := must(json.Marshal(the.CITY_REPORT))
			validReport(answer(&api.ChatRequest{Messages: said(the.QUESTION), Format: schema}).Message.Content)
			return "format"
		}},
		{"embeddings", func() string {
			reply := must(client.Embed(ctx, &api.EmbedRequest{Model: the.MODEL, Input: []string{"red", "blue", "red"}}))
			must(client.Embeddings(ctx, &api.EmbeddingRequest{Model: the.MODEL, Prompt: "red"}))
			return "embed: " + sameVectors(reply.Embeddings) + "; embeddings too"
		}},
		{"show", func() string {
			shown := must(client.Show(ctx, &api.ShowRequest{Model: the.MODEL}))
			hold(len(shown.Capabilities) > 0 && len(shown.ModelInfo) > 0 && shown.Modelfile != "", "%+v", shown)
			return "capabilities, model_info, modelfile"
		}},
		{"running", func() string {
			answer(&api.ChatRequest{Messages: said(the.QUESTION)})
			for _, model := range must(client.ListRunning(ctx)).Models {
				if model.Name == the.MODEL || model.Name == the.MODEL+":latest" {
					hold(!model.ExpiresAt.IsZero(), "it never ends")
					return ""
				}
			}
			panic("the model is not in the list")
		}},
		{"pull", func() string {
			last := ""
			check(client.Pull(ctx, &api.PullRequest{Model: the.MODEL}, func(part api.ProgressResponse) error {
				last = part.Status
				return nil
			}))
			same(last, "success")
			return "of an installed model, streamed"
		}},
		{"copy", func() string {
			check(client.Copy(ctx, &api.CopyRequest{Source: the.MODEL, Destination: "go/copy"}))
			must(client.Show(ctx, &api.ShowRequest{Model: "go/copy"}))
			check(client.Delete(ctx, &api.DeleteRequest{Model: "go/copy"}))
			_, err := client.Show(ctx, &api.ShowRequest{Model: "go/copy"})
			same(failure[api.StatusError](err).StatusCode, 404)
			return ""
		}},
		{"create", func() string {
			request := &api.CreateRequest{Model: "go/leo", From: the.MODEL, System: "You are Leo.", Parameters: map[string]any{"temperature": 0}}
			check(client.Create(ctx, request, func(api.ProgressResponse) error { return nil }))
			reply := answer(&api.ChatRequest{Model: "go/leo", Messages: said("Who are you?")})
			check(client.Delete(ctx, &api.DeleteRequest{Model: "go/leo"}))
			same(reply.Message.Content, "I am Leo.")
			return "with a system message and parameters"
		}},
		{"push", func() string {
			err := client.Push(ctx, &api.PushRequest{Model: the.MODEL}, func(api.ProgressResponse) error { return nil })
			same(failure[api.StatusError](err).StatusCode, 501)
			return "api.StatusError, status 501: there is no registry to push to"
		}},
		{"images", func() string {
			picture := must(base64.StdEncoding.DecodeString(the.PNG))
			return fails(400, &api.ChatRequest{Messages: []api.Message{{Role: "user", Content: "What is it?", Images: []api.ImageData{picture}}}})
		}},
		{"not_found", func() string {
			return fails(404, &api.ChatRequest{Model: "no/such", Messages: said(the.QUESTION)})
		}},
		{"context", func() string {
			never := false
			return fails(400, &api.ChatRequest{Messages: said(the.LONG), Truncate: &never})
		}},
		{"cancel", func() string {
			leaving, leave := context.WithCancel(ctx)
			pieces := 0
			// It ends without an error.
			check(client.Chat(leaving, &api.ChatRequest{Model: the.ENDLESS, Messages: said(the.QUESTION)}, func(api.ChatResponse) error {
				if pieces++; pieces == taken {
					leave()
				}
				return nil
			}))
			hold(pieces >= taken, "the answer ended")
			return freed()
		}},
		{"bare_name", func() string {
			same(answer(&api.ChatRequest{Model: "tiny-chat", Messages: said(the.QUESTION)}).Message.Content, the.ANSWER)
			return "tiny-chat"
		}},
		{"root", func() string {
			pieces, _, err := ask(open(at.Address), &api.ChatRequest{Messages: said(the.QUESTION)})
			check(err)
			piecesOf(pieces)
			return "streamed chat"
		}},
		{"listener", func() string {
			client := open(at.Listener)
			check(client.Heartbeat(ctx))
			must(client.Version(ctx))
			pieces, _, err := ask(client, &api.ChatRequest{Messages: said(the.QUESTION)})
			check(err)
			piecesOf(pieces)
			return "heartbeat, version, streamed chat"
		}},
		{"addresses", func() string {
			return forms(func(address string) string {
				pieces, _, err := ask(open(address), &api.ChatRequest{Messages: said(the.QUESTION), Stream: &whole})
				check(err)
				return pieces[0]
			}, "/ollama/", "/")
		}},
	})
}
