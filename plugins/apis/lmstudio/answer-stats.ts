import type { IncomingMessage } from 'node:http'
import type { Runtimes } from '../../../core/contracts/builds.ts'
import type { Delta } from '../../../core/contracts/engines.ts'
import type { HookedRequest } from '../../../core/contracts/hooks.ts'
import type { Scheduler } from '../../../core/contracts/leases.ts'

/**
 * Adds LM Studio's `stats`, `model_info` and `runtime` to answers of `/v1` that were requested under `/api/v0`. In a
 * stream they are added to the last event with content, or to the event with the usage counts.
 */
export class AnswerStats {
  readonly #deps: { scheduler: Pick<Scheduler, 'running'>; runtimes: Pick<Runtimes, 'current'> }
  readonly #marked = new WeakSet<IncomingMessage>()
  /** When the first token of an answer arrived (`performance.now()`). */
  readonly #firstTokens = new WeakMap<HookedRequest, number>()

  constructor(deps: { scheduler: Pick<Scheduler, 'running'>; runtimes: Pick<Runtimes, 'current'> }) {
    this.#deps = deps
  }

  /** Marks a request that came to `/api/v0`. */
  mark(request: IncomingMessage): void {
    this.#marked.add(request)
  }

  isMarked(request: IncomingMessage): boolean {
    return this.#marked.has(request)
  }

  wantedFor({ reply }: HookedRequest): boolean {
    return reply !== undefined && this.isMarked(reply.request.raw)
  }

  note(delta: Delta, request: HookedRequest): void {
    if (!this.wantedFor(request)) return
    const { content, thinking, toolCalls, finish, extra } = delta
    if ((content || thinking || toolCalls) && !this.#firstTokens.has(request)) {
      this.#firstTokens.set(request, performance.now())
    }
    if (!finish) return
    const { system_fingerprint } = extra ?? {}
    delta.extra = { ...(system_fingerprint !== undefined && { system_fingerprint }), ...this.#facts(delta, request) }
  }

  #facts(delta: Delta, request: HookedRequest) {
    const { record } = request.reply!.request
    const { variant } = record.use!
    const running = this.#deps.scheduler.running().find(model => model.variant.key === variant.key)
    const build = running?.engine.provider === 'llama-server' ? this.#deps.runtimes.current() : undefined
    const contextSize = running?.engine.contextSize ?? variant.metadata.contextLength ?? 0
    const now = performance.now()
    const first = this.#firstTokens.get(request) ?? now
    const generation = (delta.timing?.generation ?? now - first) / 1000
    const tokens = delta.usage?.completionTokens ?? 0
    return {
      stats: {
        tokens_per_second: generation > 0 ? tokens / generation : 0,
        // Loading the model and waiting for a slot do not count as the model's time.
        time_to_first_token: Math.max(0, first - (record.leased ?? record.began)) / 1000,
        generation_time: generation,
        stop_reason: stopReason(delta, contextSize)
      },
      model_info: {
        arch: variant.metadata.architecture ?? 'unknown',
        quant: variant.metadata.quantization ?? variant.label,
        format: variant.format,
        context_length: contextSize
      },
      runtime: {
        name: build ? `llama.cpp-${build.kind}` : (running?.engine.provider ?? 'unknown'),
        ...(build && { version: build.version }),
        supported_formats: build ? ['gguf'] : [variant.format]
      }
    }
  }
}

/** Returns LM Studio's name for the reason why an answer ended. */
function stopReason({ finish, stopSequence, usage }: Delta, contextSize: number): string {
  if (finish === 'tool_calls') return 'toolCalls'
  if (finish === 'length') {
    const used = usage ? usage.promptTokens + usage.completionTokens : 0
    return contextSize > 0 && used >= contextSize ? 'contextLengthReached' : 'maxPredictedTokensReached'
  }
  return stopSequence === undefined ? 'eosFound' : 'stopStringFound'
}
