package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

func tryAnthropic() {
	ctx := context.Background()
	client := anthropic.NewClient(option.WithBaseURL(at.Address), option.WithAPIKey("any"))
	said := func(text string) anthropic.MessageParam {
		return anthropic.NewUserMessage(anthropic.NewTextBlock(text))
	}
	greedy := func(messages ...anthropic.MessageParam) anthropic.MessageNewParams {
		return anthropic.MessageNewParams{
			Model: the.MODEL, MaxTokens: 100, Messages: messages, Temperature: anthropic.Float(0),
		}
	}
	withTools := func(text string) anthropic.MessageNewParams {
		params := greedy(said(text))
		params.Tools = []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{
			Name:        the.WEATHER.Name,
			Description: anthropic.String(the.WEATHER.Description),
			InputSchema: anthropic.ToolInputSchemaParam{
				Properties: the.WEATHER.Parameters["properties"],
				Required:   []string{"city"},
			},
		}}}
		return params
	}
	textOf := func(message *anthropic.Message) (text string) {
		for _, block := range message.Content {
			text += block.Text
		}
		return
	}
	callsOf := func(message *anthropic.Message) (calls []map[string]any) {
		for _, block := range message.Content {
			if use, is := block.AsAny().(anthropic.ToolUseBlock); is {
				same(use.Name, the.WEATHER.Name)
				calls = append(calls, decoded[map[string]any](string(use.Input)))
			}
		}
		return
	}
	// What came of a stream, put together by the SDK, and its pieces of text.
	streamed := func(params anthropic.MessageNewParams) (whole anthropic.Message, pieces []string) {
		stream := client.Messages.NewStreaming(ctx, params)
		for stream.Next() {
			check(whole.Accumulate(stream.Current()))
			if event, is := stream.Current().AsAny().(anthropic.ContentBlockDeltaEvent); is {
				pieces = append(pieces, event.Delta.Text)
			}
		}
		check(stream.Err())
		return
	}
	fails := func(status int, params anthropic.MessageNewParams) string {
		_, err := client.Messages.New(ctx, params)
		refusal := failure[*anthropic.Error](err)
		stream := client.Messages.NewStreaming(ctx, params)
		hold(!stream.Next(), "it was answered")
		same(failure[*anthropic.Error](stream.Err()).Type(), refusal.Type())
		same(refusal.StatusCode, status)
		return fmt.Sprintf("anthropic.Error, status %d, %s", status, refusal.Type())
	}

	report("anthropic-sdk-go", "", "github.com/anthropics/anthropic-sdk-go", []tried{
		{"models", func() string {
			pager := client.Models.ListAutoPaging(ctx, anthropic.ModelListParams{})
			found := false
			for pager.Next() {
				found = found || pager.Current().ID == the.MODEL
			}
			check(pager.Err())
			hold(found, "the model is not in the list")
			same(must(client.Models.Get(ctx, the.MODEL, anthropic.ModelGetParams{})).ID, the.MODEL)
			return "and one by its id"
		}},
		{"chat", func() string {
			message := must(client.Messages.New(ctx, greedy(said(the.QUESTION))))
			same([]string{textOf(message), string(message.StopReason)}, []string{the.ANSWER, "end_turn"})
			return ""
		}},
		{"system", func() string {
			params := greedy(said("Who are you?"))
			params.System = []anthropic.TextBlockParam{{Text: "You are Leo."}}
			same(textOf(must(client.Messages.New(ctx, params))), "I am Leo.")
			reply := must(client.Messages.New(ctx, greedy(
				said("My name is Rosa."),
				anthropic.NewAssistantMessage(anthropic.NewTextBlock("Nice to meet you, Rosa!")),
				said("What is my name?"),
			)))
			same(textOf(reply), "Your name is Rosa.")
			return ""
		}},
		{"stream", func() string {
			whole, pieces := streamed(greedy(said(the.QUESTION)))
			same(textOf(&whole), the.ANSWER)
			return piecesOf(pieces) + "; the accumulator too"
		}},
		{"usage", func() string {
			whole, _ := streamed(greedy(said(the.QUESTION)))
			for _, usage := range []anthropic.Usage{must(client.Messages.New(ctx, greedy(said(the.QUESTION)))).Usage, whole.Usage} {
				same([]int64{usage.InputTokens + usage.CacheReadInputTokens, usage.OutputTokens}, []int64{19, 9})
			}
			return "whole and streamed: 19 + 9 tokens, including cached tokens"
		}},
		{"stop", func() string {
			params := greedy(said(the.QUESTION))
			params.StopSequences = []string{" of France"}
			stopped := must(client.Messages.New(ctx, params))
			same([]string{textOf(stopped), string(stopped.StopReason), stopped.StopSequence},
				[]string{"The capital", "stop_sequence", " of France"})
			params = greedy(said(the.QUESTION))
			params.MaxTokens = 4
			same(string(must(client.Messages.New(ctx, params)).StopReason), "max_tokens")
			return ""
		}},
		{"tools", func() string {
			params := withTools(the.ASK_WEATHER)
			message := must(client.Messages.New(ctx, params))
			same(string(message.StopReason), "tool_use")
			same(callsOf(message), paris)
			result := anthropic.NewToolResultBlock(message.Content[len(message.Content)-1].ID, "sunny", false)
			params.Messages = append(params.Messages, message.ToParam(), anthropic.NewUserMessage(result))
			same(textOf(must(client.Messages.New(ctx, params))), the.SAY_WEATHER)
			return the.SAY_WEATHER
		}},
		{"two_tools", func() string {
			same(callsOf(must(client.Messages.New(ctx, withTools(the.ASK_TWO)))), both)
			return "Paris and Rome"
		}},
		{"streamed_tools", func() string {
			whole, _ := streamed(withTools(the.ASK_TWO))
			same(callsOf(&whole), both)
			same(string(whole.StopReason), "tool_use")
			return "two, assembled by the accumulator"
		}},
		{"forced_tool", func() string {
			params := withTools(the.ASK_WEATHER)
			params.ToolChoice = anthropic.ToolChoiceParamOfTool(the.WEATHER.Name)
			same(callsOf(must(client.Messages.New(ctx, params))), paris)
			return "by its name"
		}},
		{"schema", func() string {
			params := greedy(said(the.QUESTION))
			params.OutputConfig = anthropic.OutputConfigParam{
				Format: anthropic.JSONOutputFormatParam{Schema: the.CITY_REPORT},
			}
			validReport(textOf(must(client.Messages.New(ctx, params))))
			return "output_config"
		}},
		{"count_tokens", func() string {
			counted := must(client.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{
				Model: the.MODEL, Messages: []anthropic.MessageParam{said(the.QUESTION)},
			}))
			same(counted.InputTokens, int64(19))
			return "19 tokens, as in the answer"
		}},
		{"images", func() string {
			return fails(400, greedy(anthropic.NewUserMessage(anthropic.NewImageBlockBase64("image/png", the.PNG))))
		}},
		{"not_found", func() string {
			params := greedy(said(the.QUESTION))
			params.Model = "no/such"
			return fails(404, params)
		}},
		{"context", func() string { return fails(400, greedy(said(the.LONG))) }},
		{"wrong_key", func() string {
			open := func(key string) error {
				strict := anthropic.NewClient(option.WithBaseURL(at.Strict.Address), option.WithAPIKey(key))
				_, err := strict.Models.List(ctx, anthropic.ModelListParams{})
				return err
			}
			same(failure[*anthropic.Error](open("wrong")).StatusCode, 401)
			check(open(at.Strict.Key))
			return "anthropic.Error, status 401; the right key works"
		}},
		{"no_retries", func() string {
			counting := &countingTransport{}
			strict := anthropic.NewClient(
				option.WithBaseURL(at.Strict.Address),
				option.WithAPIKey(at.Strict.Key),
				option.WithHTTPClient(&http.Client{Transport: counting}),
			)
			_, err := strict.Messages.New(ctx, greedy(said(the.QUESTION)))
			refusal := failure[*anthropic.Error](err)
			hold(json.Valid([]byte(refusal.RawJSON())), "the refusal is no JSON")
			same(counting.count, 1)
			return fmt.Sprintf("anthropic.Error, %s: sent once", refusal.Type())
		}},
		{"cancel", func() string {
			params := greedy(said(the.QUESTION))
			params.Model, params.MaxTokens = the.ENDLESS, 3500
			stream := client.Messages.NewStreaming(ctx, params)
			for range taken {
				hold(stream.Next(), "the answer ended: %v", stream.Err())
			}
			check(stream.Close())
			return freed()
		}},
		{"addresses", func() string {
			open := func(address string) (*anthropic.Message, error) {
				client := anthropic.NewClient(option.WithBaseURL(address), option.WithAPIKey("any"))
				return client.Messages.New(ctx, greedy(said(the.QUESTION)))
			}
			_, err := open(at.Address + "/v1")
			refusal := failure[*anthropic.Error](err)
			hold(strings.Contains(refusal.RawJSON(), "take /v1 off"), "%s", refusal.RawJSON())
			return forms(func(address string) string {
				return textOf(must(open(address)))
			}, "/", "/anthropic", "/anthropic/") + "; with `/v1` the error says to remove it"
		}},
	})
}
