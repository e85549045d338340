package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	openai "github.com/sashabaranov/go-openai"
)

func tryGoOpenai() {
	ctx := context.Background()
	open := func(base, key string) *openai.Client {
		config := openai.DefaultConfig(key)
		config.BaseURL = base
		return openai.NewClientWithConfig(config)
	}
	client := open(at.Address+"/v1", "any")
	// This client leaves out a temperature of 0, so that a top_p near it makes the answers certain.
	greedy := func(text string) openai.ChatCompletionRequest {
		return openai.ChatCompletionRequest{
			Model:    the.MODEL,
			TopP:     1e-6,
			Messages: []openai.ChatCompletionMessage{{Role: openai.ChatMessageRoleUser, Content: text}},
		}
	}
	withTools := func(text string) openai.ChatCompletionRequest {
		request := greedy(text)
		request.Tools = []openai.Tool{{Type: openai.ToolTypeFunction, Function: &openai.FunctionDefinition{
			Name: the.WEATHER.Name, Description: the.WEATHER.Description, Parameters: the.WEATHER.Parameters,
		}}}
		return request
	}
	callsOf := func(calls []openai.ToolCall) (arguments []map[string]any) {
		for _, call := range calls {
			same(call.Function.Name, the.WEATHER.Name)
			arguments = append(arguments, decoded[map[string]any](call.Function.Arguments))
		}
		return
	}
	read := func(request openai.ChatCompletionRequest) (parts []openai.ChatCompletionStreamResponse) {
		stream := must(client.CreateChatCompletionStream(ctx, request))
		defer stream.Close()
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return
			}
			check(err)
			parts = append(parts, part)
		}
	}
	fails := func(status int, request openai.ChatCompletionRequest) string {
		_, err := client.CreateChatCompletion(ctx, request)
		refusal := failure[*openai.APIError](err)
		_, err = client.CreateChatCompletionStream(ctx, request)
		same(failure[*openai.APIError](err).Code, refusal.Code)
		same(refusal.HTTPStatusCode, status)
		return fmt.Sprintf("openai.APIError, status %d, %s", status, refusal.Code)
	}

	report("go-openai", "", "github.com/sashabaranov/go-openai", []tried{
		{"models", func() string {
			for _, model := range must(client.ListModels(ctx)).Models {
				if model.ID == the.MODEL {
					same(must(client.GetModel(ctx, the.MODEL)).ID, the.MODEL)
					return "and one by its id"
				}
			}
			panic("the model is not in the list")
		}},
		{"chat", func() string {
			choice := must(client.CreateChatCompletion(ctx, greedy(the.QUESTION))).Choices[0]
			same([]string{choice.Message.Content, string(choice.FinishReason)}, []string{the.ANSWER, "stop"})
			return ""
		}},
		{"stream", func() string {
			var pieces []string
			for _, part := range read(greedy(the.QUESTION)) {
				pieces = append(pieces, part.Choices[0].Delta.Content)
			}
			return piecesOf(pieces)
		}},
		{"usage", func() string {
			usage := must(client.CreateChatCompletion(ctx, greedy(the.QUESTION))).Usage
			request := greedy(the.QUESTION)
			request.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
			parts := read(request)
			for _, usage := range []openai.Usage{usage, *parts[len(parts)-1].Usage} {
				same([]int{usage.PromptTokens, usage.CompletionTokens}, []int{19, 9})
			}
			return "whole and streamed: 19 + 9 tokens"
		}},
		{"completions", func() string {
			request := openai.CompletionRequest{Model: the.MODEL, Prompt: "The capital of", MaxTokens: 6, TopP: 1e-6}
			hold(must(client.CreateCompletion(ctx, request)).Choices[0].Text != "", "no text")
			return ""
		}},
		{"tools", func() string {
			request := withTools(the.ASK_WEATHER)
			message := must(client.CreateChatCompletion(ctx, request)).Choices[0].Message
			same(callsOf(message.ToolCalls), paris)
			request.Messages = append(request.Messages, message, openai.ChatCompletionMessage{
				Role: openai.ChatMessageRoleTool, ToolCallID: message.ToolCalls[0].ID, Content: "sunny",
			})
			same(must(client.CreateChatCompletion(ctx, request)).Choices[0].Message.Content, the.SAY_WEATHER)
			return the.SAY_WEATHER
		}},
		{"two_tools", func() string {
			same(callsOf(must(client.CreateChatCompletion(ctx, withTools(the.ASK_TWO))).Choices[0].Message.ToolCalls), both)
			return "Paris and Rome"
		}},
		{"streamed_tools", func() string {
			var calls []openai.ToolCall
			for _, part := range read(withTools(the.ASK_TWO)) {
				for _, call := range part.Choices[0].Delta.ToolCalls {
					for len(calls) <= *call.Index {
						calls = append(calls, openai.ToolCall{})
					}
					calls[*call.Index].Function.Name += call.Function.Name
					calls[*call.Index].Function.Arguments += call.Function.Arguments
				}
			}
			same(callsOf(calls), both)
			return "Paris and Rome, by their index"
		}},
		{"schema", func() string {
			request := greedy(the.QUESTION)
			request.ResponseFormat = &openai.ChatCompletionResponseFormat{
				Type: openai.ChatCompletionResponseFormatTypeJSONSchema,
				JSONSchema: &openai.ChatCompletionResponseFormatJSONSchema{
					Name: "city_report", Schema: json.RawMessage(must(json.Marshal(the.CITY_REPORT))), Strict: true,
				},
			}
			validReport(must(client.CreateChatCompletion(ctx, request)).Choices[0].Message.Content)
			return "response_format"
		}},
		{"embeddings", func() string {
			ask := func(format openai.EmbeddingEncodingFormat) (vectors [][]float32) {
				request := openai.EmbeddingRequest{
					Model: openai.EmbeddingModel(the.MODEL), Input: []string{"red", "blue", "red"}, EncodingFormat: format,
				}
				for _, one := range must(client.CreateEmbeddings(ctx, request)).Data {
					vectors = append(vectors, one.Embedding)
				}
				return
			}
			sameVectors(ask(openai.EmbeddingEncodingFormatBase64))
			return sameVectors(ask(openai.EmbeddingEncodingFormatFloat)) + "; base64 too"
		}},
		{"images", func() string {
			request := greedy("")
			request.Messages[0].MultiContent = []openai.ChatMessagePart{{
				Type:     openai.ChatMessagePartTypeImageURL,
				ImageURL: &openai.ChatMessageImageURL{URL: "data:image/png;base64," + the.PNG},
			}}
			return fails(400, request)
		}},
		{"not_found", func() string {
			request := greedy(the.QUESTION)
			request.Model = "no/such"
			return fails(404, request)
		}},
		{"context", func() string { return fails(400, greedy(the.LONG)) }},
		{"wrong_key", func() string {
			_, err := open(at.Strict.Address+"/v1", "wrong").ListModels(ctx)
			same(failure[*openai.APIError](err).HTTPStatusCode, 401)
			must(open(at.Strict.Address+"/v1", at.Strict.Key).ListModels(ctx))
			return "openai.APIError, status 401; the right key works"
		}},
		{"cancel", func() string {
			request := greedy(the.QUESTION)
			request.Model = the.ENDLESS
			stream := must(client.CreateChatCompletionStream(ctx, request))
			for range taken {
				must(stream.Recv())
			}
			check(stream.Close())
			return freed()
		}},
		{"addresses", func() string {
			return forms(func(address string) string {
				return must(open(address, "any").CreateChatCompletion(ctx, greedy(the.QUESTION))).Choices[0].Message.Content
			}, "/v1/", "", "/")
		}},
	})
}
