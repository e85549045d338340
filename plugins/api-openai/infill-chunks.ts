import type { Chunk } from './chunk-wording.ts'

/** An event of llama-server's `/infill`, which has a form of its own. */
interface InfillEvent {
  index: number
  content: string
  stop: boolean
  stop_type?: string
  tokens_evaluated?: number
  tokens_predicted?: number
  timings?: { cache_n?: number; [other: string]: unknown }
  completion_probabilities?: unknown[]
}

/** Gives the events of `/infill` the form of completions. */
export class InfillChunks {
  readonly #common = {
    created: Math.floor(Date.now() / 1000),
    object: 'text_completion'
  }
  #open: number

  /** @param choices how many answers there will be */
  constructor(choices: number) {
    this.#open = choices
  }

  /** Whether all answers are complete: there is no mark at the end. */
  get done(): boolean {
    return this.#open === 0
  }

  chunk(event: InfillEvent): Chunk {
    const { tokens_evaluated = 0, tokens_predicted = 0, timings } = event
    if (event.stop) this.#open--
    return {
      ...this.#common,
      choices: [
        {
          index: event.index,
          text: event.content,
          finish_reason: !event.stop ? null : event.stop_type === 'limit' ? 'length' : 'stop',
          logprobs: event.completion_probabilities ? { content: event.completion_probabilities } : null
        }
      ],
      ...(event.stop && {
        usage: {
          prompt_tokens: tokens_evaluated,
          completion_tokens: tokens_predicted,
          total_tokens: tokens_evaluated + tokens_predicted,
          prompt_tokens_details: { cached_tokens: timings?.cache_n ?? 0 }
        },
        timings
      })
    }
  }
}
