package main

import (
	"context"
	"fmt"
	"sort"

	cohere "github.com/cohere-ai/cohere-go/v2"
	"github.com/cohere-ai/cohere-go/v2/option"
	"github.com/cohere-ai/cohere-go/v2/v2"
)

func tryCohere() {
	if at.Ranker == "" {
		return
	}
	ctx := context.Background()
	client := v2.NewClient(option.WithBaseURL(at.Address), option.WithToken("any"))
	documents := []string{"The capital of France is Paris.", "Cheese is made of milk.", "Rome is warm."}
	report("cohere-go", "", "github.com/cohere-ai/cohere-go/v2", []tried{
		{"rerank", func() string {
			ask := func(most int) (indexes []int) {
				request := &cohere.V2RerankRequest{Model: at.Ranker, Query: the.QUESTION, Documents: documents, TopN: &most}
				reply := must(client.Rerank(ctx, request))
				ranked := reply.Results
				hold(sort.SliceIsSorted(ranked, func(a, b int) bool { return ranked[a].RelevanceScore > ranked[b].RelevanceScore }), "not by score")
				for _, one := range ranked {
					indexes = append(indexes, one.Index)
				}
				return
			}
			all := ask(3)
			same(ask(1), all[:1])
			sort.Ints(all)
			same(all, []int{0, 1, 2})
			return "by score; top_n"
		}},
		{"not_found", func() string {
			_, err := client.Rerank(ctx, &cohere.V2RerankRequest{Model: "no/such", Query: the.QUESTION, Documents: documents})
			refusal := failure[*cohere.NotFoundError](err)
			return fmt.Sprintf("NotFoundError, status %d", refusal.StatusCode)
		}},
	})
}
