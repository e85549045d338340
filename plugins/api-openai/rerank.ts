import { CorralError } from '../../core/errors.ts'
import type { StoredVariant } from '../../core/services.ts'
import type { Question } from './relay.ts'
import type { RerankRequest } from './request-schemas.ts'

type Fields = Record<string, unknown>

interface RerankReply {
  results: { index: number; relevance_score: number }[]
  [other: string]: unknown
}

const textOf = (document: RerankRequest['documents'][number]) =>
  typeof document === 'string' ? document : document.text

/** @throws CorralError `unsupported_capability`: other models would give scores that mean nothing */
export function rerankQuestion({ query, documents }: RerankRequest, variant: StoredVariant): Question {
  const { capabilities } = variant.metadata
  if (!capabilities.includes('rerank')) {
    throw new CorralError(
      'unsupported_capability',
      `Model "${variant.publicName}" does not rank documents (it can: ${capabilities.join(', ') || 'nothing known'}). Use a reranking model.`
    )
  }
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
