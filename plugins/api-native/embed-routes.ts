import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync, FastifyReply } from 'fastify'
import { shortened } from '../../core/answers/embedding.ts'
import { askOnce, callOf } from '../../core/answers/pipeline.ts'
import { parseKeepAlive, parseOptions } from '../../core/models/options.ts'
import type { MountedDependencies } from './native-dependencies.ts'
import { embedOperations } from './operations/embed.ts'
import { nameOf } from './records.ts'
import type { EmbeddingsRequest, EmbedRequest } from './schemas.ts'

interface Embeddings {
  /** One for each text, of length 1. */
  vectors: number[][]
  promptTokens: number
}

const NONE: Embeddings = { vectors: [], promptTokens: 0 }

/** Embeddings of texts, in Ollama's present and its older shape. */
export function embedRoutes(deps: MountedDependencies): FastifyPluginAsync {
  const { catalog, scheduler, naming } = deps
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()

    app.post('/embed', { schema: embedOperations.embed }, async ({ body }, reply) => {
      const began = process.hrtime.bigint()
      const texts = typeof body.input === 'string' ? [body.input].filter(text => text !== '') : (body.input ?? [])
      const { embeddings, loadDuration } = await embed(body, texts, reply, {
        truncate: body.truncate ?? false,
        dimensions: body.dimensions ?? undefined
      })
      return {
        model: nameOf(body),
        embeddings: embeddings.vectors,
        total_duration: Number(process.hrtime.bigint() - began),
        load_duration: Math.round(loadDuration * 1e6),
        prompt_eval_count: embeddings.promptTokens
      }
    })

    app.post('/embeddings', { schema: embedOperations.embeddings }, async ({ body }, reply) => {
      const { embeddings } = await embed(body, body.prompt ? [body.prompt] : [], reply, { truncate: false })
      return { embedding: embeddings.vectors[0] ?? [] }
    })
  }

  /** Without texts the model is only loaded, or unloaded where `keep_alive` is 0. */
  async function embed(
    body: EmbedRequest | EmbeddingsRequest,
    texts: string[],
    reply: FastifyReply,
    { truncate, dimensions }: { truncate: boolean; dimensions?: number | undefined }
  ): Promise<{ embeddings: Embeddings; loadDuration: number }> {
    const model = naming.parse(nameOf(body))
    const keepAlive = parseKeepAlive(body.keep_alive)
    const { load } = parseOptions(body.options)
    catalog.get(model)
    if (texts.length === 0 && keepAlive === 0) {
      scheduler.keepAlive(model, 0)
      return { embeddings: NONE, loadDuration: 0 }
    }
    const loadOnly = texts.length === 0
    const lease = { model, mode: 'embedding' as const, options: load, keepAlive, loadOnly }
    const question = { operation: 'embeddings' as const, body: { input: texts }, lease }
    return await askOnce(deps, reply, question, async (held, { input }) => {
      const { loadDuration, signal } = held
      if (loadOnly) return { embeddings: NONE, loadDuration }
      const { vectors, promptTokens } = await callOf(held, 'embed')(input, { truncate, signal })
      return {
        embeddings: { vectors: vectors.map(vector => shortened(vector, dimensions)), promptTokens },
        loadDuration
      }
    })
  }
}
