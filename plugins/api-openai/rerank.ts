import type { Question } from './relay.ts'
import type { RerankRequest } from './request-schemas.ts'

type Fields = Record<string, unknown>

interface RerankReply {
  results: { index: number; relevance_score: number }[]
  [other: string]: unknown
}

const textOf = (document: RerankRequest['documents'][number]) =>
  typeof document === 'string' ? document : document.text

/** What the engine is asked: to score all documents. */
export function rerankQuestion({ query, documents }: RerankRequest): Question {
  return {
    mode: 'rerank',
    path: '/v1/rerank',
    body: { query, documents: documents.map(textOf) },
    list: { asked: 'documents', told: 'results' }
  }
}

/** The best of the engine's results, with their documents where these are asked for. */
export function wordRanking(reply: RerankReply, { documents, top_n, return_documents }: RerankRequest): Fields {
  const best = [...reply.results].sort((a, b) => b.relevance_score - a.relevance_score)
  return {
    ...reply,
    results: best
      .slice(0, top_n ?? undefined)
      .map(result => (return_documents ? { ...result, document: { text: textOf(documents[result.index]!) } } : result))
  }
}
