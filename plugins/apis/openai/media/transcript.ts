import type { Delta, TokenUsage } from '../../../../core/contracts/engines.ts'

type Fields = Record<string, unknown>

/** A part of the text with its times in seconds. Engines send all fields but the text in `json.segment`. */
interface Segment extends Fields {
  id: number
  start: number
  end: number
  text: string
  words?: { word: string; start: number; end: number }[]
}

/** Collects what an engine heard, and writes it in the formats of OpenAI's API. */
export class Transcript {
  #logprobs: Fields[] = []
  #usage: TokenUsage | undefined
  /** Language and duration. */
  #facts: Fields = {}
  #segments: Segment[] = []
  text = ''

  add(deltas: readonly Delta[]): Fields[] {
    const events: Fields[] = []
    for (const { choice, content, logprobs, usage, json } of deltas) {
      if (choice) continue
      this.#usage = usage ?? this.#usage
      const { segment, ...facts } = json ?? {}
      Object.assign(this.#facts, facts)
      const tokenFields = logprobs?.map(({ token, logprob, bytes }) => ({ token, logprob, bytes }))
      this.#logprobs.push(...(tokenFields ?? []))
      if (!content) continue
      this.text += content
      if (segment) this.#segments.push({ ...(segment as Segment), text: content.trim() })
      events.push({ type: 'transcript.text.delta', delta: content, ...(tokenFields && { logprobs: tokenFields }) })
    }
    return events
  }

  /** Whether the engine reports when each part was said. Nothing was said in a transcript without text. */
  get isTimed(): boolean {
    return this.#segments.length > 0 || this.text === ''
  }

  whole(): Fields {
    const { promptTokens = 0, completionTokens = 0 } = this.#usage ?? {}
    return {
      text: this.text,
      ...(this.#logprobs.length > 0 && { logprobs: this.#logprobs }),
      usage: {
        type: 'tokens',
        input_tokens: promptTokens,
        output_tokens: completionTokens,
        total_tokens: promptTokens + completionTokens
      }
    }
  }

  done(): Fields {
    return { type: 'transcript.text.done', ...this.whole() }
  }

  verbose(task: string, granularities: readonly string[]): Fields {
    const { language = '', duration = this.#segments.at(-1)?.end ?? 0 } = this.#facts
    // A filter may have changed the text of a segment. Then its words are not what the engine heard.
    const words = this.#segments.flatMap(({ words: heard = [], text }) =>
      heard.map(({ word }) => word).join(' ') === text ? heard : []
    )
    return {
      task,
      language,
      duration,
      text: this.text,
      ...(granularities.includes('word') && { words }),
      ...(granularities.includes('segment') && { segments: this.#segments.map(({ words: _, ...segment }) => segment) }),
      usage: { type: 'duration', seconds: Math.ceil(Number(duration)) }
    }
  }

  /** The segments as subtitles. @param separator before the milliseconds: a comma in SubRip, a dot in WebVTT */
  subtitles(separator: ',' | '.'): string {
    const clock = (seconds: number) =>
      new Date(seconds * 1000).toISOString().slice('1970-01-01T'.length, -1).replace('.', separator)
    const cues = this.#segments.map(({ start, end, text }, index) => {
      const number = separator === ',' ? `${index + 1}\n` : ''
      return `${number}${clock(start)} --> ${clock(end)}\n${text}\n\n`
    })
    return `${separator === '.' ? 'WEBVTT\n\n' : ''}${cues.join('')}`
  }
}
