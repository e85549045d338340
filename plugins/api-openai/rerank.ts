import type { RankingReply } from '../../core/contracts/engines.ts'
import type { RerankRequest } from './request-schemas.ts'

export const textOf = (document: RerankRequest['documents'][number]) =>
  typeof document === 'string' ? document : document.text

/** The best of the engine's results, with their documents where these are requested. */
export function ranking(
  { scores, promptTokens }: RankingReply,
  { documents, top_n, return_documents }: RerankRequest,
  model: string
) {
  const best = [...scores].sort((a, b) => b.score - a.score).slice(0, top_n ?? undefined)
  return {
    object: 'list',
    model,
    usage: { prompt_tokens: promptTokens, total_tokens: promptTokens },
    results: best.map(({ index, score }) => ({
      index,
      relevance_score: score,
      ...(return_documents && { document: { text: textOf(documents[index]!) } })
    }))
  }
}
