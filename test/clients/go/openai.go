package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func tryOpenai() {
	ctx := context.Background()
	client := openai.NewClient(option.WithBaseURL(at.Address+"/v1"), option.WithAPIKey("any"))
	said := func(text string) []openai.ChatCompletionMessageParamUnion {
		return []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}
	}
	greedy := func(messages []openai.ChatCompletionMessageParamUnion) openai.ChatCompletionNewParams {
		return openai.ChatCompletionNewParams{Model: the.MODEL, Messages: messages, Temperature: openai.Float(0)}
	}
	weather := shared.FunctionDefinitionParam{
		Name:        the.WEATHER.Name,
		Description: openai.String(the.WEATHER.Description),
		Parameters:  the.WEATHER.Parameters,
	}
	tools := []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(weather)}
	withTools := func(text string) openai.ChatCompletionNewParams {
		params := greedy(said(text))
		params.Tools = tools
		return params
	}
	callsOf := func(message openai.ChatCompletionMessage) (calls []map[string]any) {
		for _, call := range message.ToolCalls {
			same(call.Function.Name, the.WEATHER.Name)
			calls = append(calls, decoded[map[string]any](call.Function.Arguments))
		}
		return
	}
	// The refusal of a request, whole and streamed.
	fails := func(status int, params openai.ChatCompletionNewParams) string {
		_, err := client.Chat.Completions.New(ctx, params)
		refusal := failure[*openai.Error](err)
		stream := client.Chat.Completions.NewStreaming(ctx, params)
		hold(!stream.Next(), "it was answered")
		same(failure[*openai.Error](stream.Err()).Code, refusal.Code)
		same(refusal.StatusCode, status)
		return fmt.Sprintf("openai.Error, status %d, %s", status, refusal.Code)
	}
	responseTool := responses.ToolUnionParam{OfFunction: &responses.FunctionToolParam{
		Name:       the.WEATHER.Name,
		Parameters: the.WEATHER.Parameters,
		Strict:     openai.Bool(true),
	}}
	respond := func(text string) responses.ResponseNewParams {
		return responses.ResponseNewParams{
			Model:       the.MODEL,
			Temperature: openai.Float(0),
			Input:       responses.ResponseNewParamsInputUnion{OfString: openai.String(text)},
		}
	}

	report("openai-go", "", "github.com/openai/openai-go/v3", []tried{
		{"models", func() string {
			pager := client.Models.ListAutoPaging(ctx)
			found := false
			for pager.Next() {
				found = found || pager.Current().ID == the.MODEL
			}
			check(pager.Err())
			hold(found, "the model is not in the list")
			same(must(client.Models.Get(ctx, the.MODEL)).ID, the.MODEL)
			return "and one by its id"
		}},
		{"chat", func() string {
			choice := must(client.Chat.Completions.New(ctx, greedy(said(the.QUESTION)))).Choices[0]
			same([]string{choice.Message.Content, choice.FinishReason}, []string{the.ANSWER, "stop"})
			return ""
		}},
		{"system", func() string {
			reply := must(client.Chat.Completions.New(ctx, greedy([]openai.ChatCompletionMessageParamUnion{
				openai.SystemMessage("You are Leo."),
				openai.UserMessage("Who are you?"),
			})))
			same(reply.Choices[0].Message.Content, "I am Leo.")
			reply = must(client.Chat.Completions.New(ctx, greedy([]openai.ChatCompletionMessageParamUnion{
				openai.UserMessage("My name is Rosa."),
				openai.AssistantMessage("Nice to meet you, Rosa!"),
				openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{openai.TextContentPart("What is my name?")}),
			})))
			same(reply.Choices[0].Message.Content, "Your name is Rosa.")
			return ""
		}},
		{"stream", func() string {
			stream := client.Chat.Completions.NewStreaming(ctx, greedy(said(the.QUESTION)))
			whole := openai.ChatCompletionAccumulator{}
			var pieces []string
			for stream.Next() {
				hold(whole.AddChunk(stream.Current()), "the accumulator takes no such chunk")
				if choices := stream.Current().Choices; len(choices) > 0 {
					pieces = append(pieces, choices[0].Delta.Content)
				}
			}
			check(stream.Err())
			same(whole.Choices[0].Message.Content, the.ANSWER)
			return piecesOf(pieces) + "; the accumulator too"
		}},
		{"usage", func() string {
			params := greedy(said(the.QUESTION))
			usage := must(client.Chat.Completions.New(ctx, params)).Usage
			params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
			stream := client.Chat.Completions.NewStreaming(ctx, params)
			whole := openai.ChatCompletionAccumulator{}
			for stream.Next() {
				whole.AddChunk(stream.Current())
			}
			check(stream.Err())
			same([]int64{usage.PromptTokens, usage.CompletionTokens, usage.TotalTokens}, []int64{19, 9, 28})
			same([]int64{whole.Usage.PromptTokens, whole.Usage.CompletionTokens}, []int64{19, 9})
			return "whole and streamed: 19 + 9 tokens"
		}},
		{"stop", func() string {
			params := greedy(said(the.QUESTION))
			params.Stop = openai.ChatCompletionNewParamsStopUnion{OfStringArray: []string{" of France"}}
			same(must(client.Chat.Completions.New(ctx, params)).Choices[0].Message.Content, "The capital")
			params = greedy(said(the.QUESTION))
			params.MaxCompletionTokens = openai.Int(4)
			same(must(client.Chat.Completions.New(ctx, params)).Choices[0].FinishReason, "length")
			return ""
		}},
		{"completions", func() string {
			params := openai.CompletionNewParams{
				Model:       openai.CompletionNewParamsModel(the.MODEL),
				Prompt:      openai.CompletionNewParamsPromptUnion{OfString: openai.String("The capital of")},
				MaxTokens:   openai.Int(6),
				Temperature: openai.Float(0),
			}
			text := must(client.Completions.New(ctx, params)).Choices[0].Text
			stream := client.Completions.NewStreaming(ctx, params)
			streamed := ""
			for stream.Next() {
				if choices := stream.Current().Choices; len(choices) > 0 {
					streamed += choices[0].Text
				}
			}
			check(stream.Err())
			hold(text != "", "no text")
			same(streamed, text)
			return "whole and streamed"
		}},
		{"tools", func() string {
			params := withTools(the.ASK_WEATHER)
			choice := must(client.Chat.Completions.New(ctx, params)).Choices[0]
			same(choice.FinishReason, "tool_calls")
			same(callsOf(choice.Message), paris)
			result := openai.ToolMessage("sunny", choice.Message.ToolCalls[0].ID)
			params.Messages = append(params.Messages, choice.Message.ToParam(), result)
			same(must(client.Chat.Completions.New(ctx, params)).Choices[0].Message.Content, the.SAY_WEATHER)
			return the.SAY_WEATHER
		}},
		{"two_tools", func() string {
			message := must(client.Chat.Completions.New(ctx, withTools(the.ASK_TWO))).Choices[0].Message
			same(callsOf(message), both)
			hold(message.ToolCalls[0].ID != message.ToolCalls[1].ID, "both calls have one id")
			return "Paris and Rome, each with its own id"
		}},
		{"streamed_tools", func() string {
			stream := client.Chat.Completions.NewStreaming(ctx, withTools(the.ASK_TWO))
			whole := openai.ChatCompletionAccumulator{}
			finished := 0
			for stream.Next() {
				hold(whole.AddChunk(stream.Current()), "the accumulator takes no such chunk")
				if _, just := whole.JustFinishedToolCall(); just {
					finished++
				}
			}
			check(stream.Err())
			same(callsOf(whole.Choices[0].Message), both)
			same(finished, 2)
			return "two, assembled by the accumulator"
		}},
		{"forced_tool", func() string {
			params := withTools(the.ASK_WEATHER)
			params.ToolChoice = openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{
				Name: the.WEATHER.Name,
			})
			same(callsOf(must(client.Chat.Completions.New(ctx, params)).Choices[0].Message), paris)
			return "by its name"
		}},
		{"schema", func() string {
			params := greedy(said(the.QUESTION))
			params.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{
				OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
					Name: "city_report", Schema: the.CITY_REPORT, Strict: openai.Bool(true),
				}},
			}
			validReport(must(client.Chat.Completions.New(ctx, params)).Choices[0].Message.Content)
			return "response_format"
		}},
		{"embeddings", func() string {
			reply := must(client.Embeddings.New(ctx, openai.EmbeddingNewParams{
				Model: the.MODEL,
				Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"red", "blue", "red"}},
			}))
			var vectors [][]float64
			for _, one := range reply.Data {
				vectors = append(vectors, one.Embedding)
			}
			return sameVectors(vectors)
		}},
		{"responses", func() string {
			first := must(client.Responses.New(ctx, respond(the.QUESTION)))
			same([]string{first.OutputText(), string(first.Status)}, []string{the.ANSWER, "completed"})
			params := respond(the.ASK_WEATHER)
			params.Tools = []responses.ToolUnionParam{responseTool}
			called := must(client.Responses.New(ctx, params))
			call := called.Output[len(called.Output)-1].AsFunctionCall()
			same(decoded[map[string]any](call.Arguments), paris[0])
			params.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
				responses.ResponseInputItemParamOfMessage(the.ASK_WEATHER, responses.EasyInputMessageRoleUser),
				responses.ResponseInputItemParamOfFunctionCall(call.Arguments, call.CallID, call.Name),
				{OfFunctionCallOutput: &responses.ResponseInputItemFunctionCallOutputParam{
					CallID: openai.String(call.CallID),
					Output: responses.ResponseInputItemFunctionCallOutputOutputUnionParam{OfString: openai.String("sunny")},
				}},
			}}
			same(must(client.Responses.New(ctx, params)).OutputText(), the.SAY_WEATHER)
			return "text, tool call and its result"
		}},
		{"streamed_responses", func() string {
			stream := client.Responses.NewStreaming(ctx, respond(the.QUESTION))
			var pieces []string
			last := ""
			for stream.Next() {
				event := stream.Current()
				last = event.Type
				if event.Type == "response.output_text.delta" {
					pieces = append(pieces, event.Delta)
				}
			}
			check(stream.Err())
			same(last, "response.completed")
			return piecesOf(pieces)
		}},
		{"images", func() string {
			return fails(400, greedy([]openai.ChatCompletionMessageParamUnion{
				openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
					openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "data:image/png;base64," + the.PNG}),
				}),
			}))
		}},
		{"not_found", func() string {
			params := greedy(said(the.QUESTION))
			params.Model = "no/such"
			return fails(404, params)
		}},
		{"context", func() string { return fails(400, greedy(said(the.LONG))) }},
		{"wrong_key", func() string {
			open := func(key string) error {
				strict := openai.NewClient(option.WithBaseURL(at.Strict.Address+"/v1"), option.WithAPIKey(key))
				_, err := strict.Models.List(ctx)
				return err
			}
			same(failure[*openai.Error](open("wrong")).StatusCode, 401)
			check(open(at.Strict.Key))
			return "openai.Error, status 401; the right key works"
		}},
		{"no_retries", func() string {
			counting := &countingTransport{}
			strict := openai.NewClient(
				option.WithBaseURL(at.Strict.Address+"/v1"),
				option.WithAPIKey(at.Strict.Key),
				option.WithHTTPClient(&http.Client{Transport: counting}),
			)
			_, err := strict.Chat.Completions.New(ctx, greedy(said(the.QUESTION)))
			refusal := failure[*openai.Error](err)
			same(counting.count, 1)
			return fmt.Sprintf("openai.Error, %s: sent once", refusal.Code)
		}},
		{"cancel", func() string {
			open := func(ctx context.Context) *ssestream.Stream[openai.ChatCompletionChunk] {
				params := greedy(said(the.QUESTION))
				params.Model = the.ENDLESS
				stream := client.Chat.Completions.NewStreaming(ctx, params)
				for range taken {
					hold(stream.Next(), "the answer ended: %v", stream.Err())
				}
				return stream
			}
			check(open(ctx).Close())
			freed()
			leaving, leave := context.WithCancel(ctx)
			open(leaving)
			leave()
			return "by Close and by its context: " + freed()
		}},
		{"addresses", func() string {
			return forms(func(address string) string {
				client := openai.NewClient(option.WithBaseURL(address), option.WithAPIKey("any"))
				must(client.Models.List(ctx))
				return must(client.Chat.Completions.New(ctx, greedy(said(the.QUESTION)))).Choices[0].Message.Content
			}, "/v1/", "", "/")
		}},
	})
}
