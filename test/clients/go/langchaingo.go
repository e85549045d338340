package main

import (
	"context"
	"strings"

	"github.com/tmc/langchaingo/llms"
	"github.com/tmc/langchaingo/llms/anthropic"
	"github.com/tmc/langchaingo/llms/ollama"
	"github.com/tmc/langchaingo/llms/openai"
)

func tryLangchaingo() {
	ctx := context.Background()
	said := func(text string) []llms.MessageContent {
		return []llms.MessageContent{llms.TextParts(llms.ChatMessageTypeHuman, text)}
	}
	greedy := func(more ...llms.CallOption) []llms.CallOption {
		return append([]llms.CallOption{llms.WithTemperature(0), llms.WithMaxTokens(100)}, more...)
	}
	tools := llms.WithTools([]llms.Tool{{Type: "function", Function: &llms.FunctionDefinition{
		Name: the.WEATHER.Name, Description: the.WEATHER.Description, Parameters: the.WEATHER.Parameters,
	}}})
	callsOf := func(reply *llms.ContentResponse) (calls []map[string]any) {
		for _, choice := range reply.Choices {
			for _, call := range choice.ToolCalls {
				same(call.FunctionCall.Name, the.WEATHER.Name)
				calls = append(calls, decoded[map[string]any](call.FunctionCall.Arguments))
			}
		}
		return
	}

	// What every provider is tried with.
	trialsOf := func(open func(name string) llms.Model) []tried {
		model := open(the.MODEL)
		return []tried{
			{"chat", func() string {
				same(must(llms.GenerateFromSinglePrompt(ctx, model, the.QUESTION, greedy()...)), the.ANSWER)
				return ""
			}},
			{"system", func() string {
				messages := append([]llms.MessageContent{llms.TextParts(llms.ChatMessageTypeSystem, "You are Leo.")}, said("Who are you?")...)
				same(must(model.GenerateContent(ctx, messages, greedy()...)).Choices[0].Content, "I am Leo.")
				return ""
			}},
			{"stream", func() string {
				var pieces []string
				take := llms.WithStreamingFunc(func(_ context.Context, piece []byte) error {
					pieces = append(pieces, string(piece))
					return nil
				})
				same(must(model.GenerateContent(ctx, said(the.QUESTION), greedy(take)...)).Choices[0].Content, the.ANSWER)
				return piecesOf(pieces)
			}},
			{"usage", func() string {
				info := must(model.GenerateContent(ctx, said(the.QUESTION), greedy()...)).Choices[0].GenerationInfo
				counts := []any{info["PromptTokens"], info["CompletionTokens"]}
				if info["InputTokens"] != nil {
					counts = []any{info["InputTokens"].(int) + info["CacheReadInputTokens"].(int), info["OutputTokens"]}
				}
				same(counts, []any{19, 9})
				return "19 + 9 tokens"
			}},
			{"not_found", func() string {
				_, err := open("no/such").GenerateContent(ctx, said(the.QUESTION), greedy()...)
				hold(err != nil, "it was answered")
				return messageHolds(err, "no/such")
			}},
			{"context", func() string {
				_, err := model.GenerateContent(ctx, said(the.LONG), greedy()...)
				hold(err != nil, "it was answered")
				return messageHolds(err, "context")
			}},
			{"cancel", func() string {
				pieces := 0
				leaving, leave := context.WithCancel(ctx)
				defer leave()
				take := llms.WithStreamingFunc(func(context.Context, []byte) error {
					if pieces++; pieces == taken {
						leave()
					}
					return nil
				})
				open(the.ENDLESS).GenerateContent(leaving, said(the.QUESTION), llms.WithMaxTokens(3500), take)
				hold(pieces >= taken, "only %d pieces came", pieces)
				return freed()
			}},
		}
	}
	toolTrials := func(model llms.Model) []tried {
		return []tried{
			{"tools", func() string {
				messages := said(the.ASK_WEATHER)
				reply := must(model.GenerateContent(ctx, messages, greedy(tools)...))
				same(callsOf(reply), paris)
				var call llms.ToolCall
				for _, choice := range reply.Choices {
					if len(choice.ToolCalls) > 0 {
						call = choice.ToolCalls[0]
					}
				}
				messages = append(messages,
					llms.MessageContent{Role: llms.ChatMessageTypeAI, Parts: []llms.ContentPart{call}},
					llms.MessageContent{Role: llms.ChatMessageTypeTool, Parts: []llms.ContentPart{llms.ToolCallResponse{
						ToolCallID: call.ID, Name: the.WEATHER.Name, Content: "sunny",
					}}})
				same(must(model.GenerateContent(ctx, messages, greedy(tools)...)).Choices[0].Content, the.SAY_WEATHER)
				return the.SAY_WEATHER
			}},
			{"two_tools", func() string {
				same(callsOf(must(model.GenerateContent(ctx, said(the.ASK_TWO), greedy(tools)...))), both)
				return "Paris and Rome"
			}},
		}
	}
	type embedder interface {
		CreateEmbedding(ctx context.Context, texts []string) ([][]float32, error)
	}
	embeddings := func(model embedder) tried {
		return tried{"embeddings", func() string {
			return sameVectors(must(model.CreateEmbedding(ctx, []string{"red", "blue", "red"})))
		}}
	}

	hosted := func(name string, more ...openai.Option) *openai.LLM {
		return must(openai.New(append([]openai.Option{
			openai.WithBaseURL(at.Address + "/v1"), openai.WithToken("any"), openai.WithModel(name),
			openai.WithEmbeddingModel(name),
		}, more...)...))
	}
	schema := tried{"schema", func() string {
		text := func(values ...any) *openai.ResponseFormatJSONSchemaProperty {
			return &openai.ResponseFormatJSONSchemaProperty{Type: "string", Enum: values}
		}
		format := &openai.ResponseFormat{Type: "json_schema", JSONSchema: &openai.ResponseFormatJSONSchema{
			Name: "city_report", Strict: true,
			Schema: &openai.ResponseFormatJSONSchemaProperty{
				Type: "object", Required: []string{"city", "warm", "rank"},
				Properties: map[string]*openai.ResponseFormatJSONSchemaProperty{
					"city": text("Paris", "Rome"), "warm": {Type: "boolean"}, "rank": text("1", "2"),
				},
			},
		}}
		model := hosted(the.MODEL, openai.WithResponseFormat(format))
		validReport(must(model.GenerateContent(ctx, said(the.QUESTION), greedy()...)).Choices[0].Content)
		return "WithResponseFormat"
	}}
	hostedTrials := trialsOf(func(name string) llms.Model { return hosted(name) })
	hostedTrials = append(append(hostedTrials, toolTrials(hosted(the.MODEL))...), schema, embeddings(hosted(the.MODEL)))
	report("langchaingo", "openai", "github.com/tmc/langchaingo", hostedTrials)

	ollamas := func(name string) *ollama.LLM {
		return must(ollama.New(ollama.WithServerURL(at.Address+"/ollama"), ollama.WithModel(name)))
	}
	// It has no tools for Ollama's models.
	ollamaTrials := trialsOf(func(name string) llms.Model { return ollamas(name) })
	report("langchaingo", "ollama", "github.com/tmc/langchaingo", append(ollamaTrials, embeddings(ollamas(the.MODEL))))

	claude := func(name string) llms.Model {
		return must(anthropic.New(anthropic.WithBaseURL(at.Address+"/v1"), anthropic.WithToken("any"), anthropic.WithModel(name)))
	}
	report("langchaingo", "anthropic", "github.com/tmc/langchaingo", append(trialsOf(claude), toolTrials(claude(the.MODEL))...))
}

func messageHolds(err error, part string) string {
	hold(strings.Contains(strings.ToLower(err.Error()), part), "the message does not hold %q: %v", part, err)
	return "the message says so"
}
