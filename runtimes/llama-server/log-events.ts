import type { EngineLogRecord } from '../../core/contracts/engine-log.ts'
import { formatBytes } from '../../core/system/bytes.ts'

type Prompts = Map<string, { count: string; speed: string }>
type Rule = [pattern: RegExp, say: (found: string[], prompts: Prompts) => string | undefined]

/** Explains lines of llama-server to people. The first matching rule wins. */
const RULES: Rule[] = [
  [/load_model: loading model '(.+?)'/, ([file]) => `loads ${file}`],
  [/threadpool init, n_threads = (\d+)/, ([count]) => `computes with ${many(count!, 'thread')}`],
  [/offloaded (\d+)\/(\d+) layers to GPU/, ([some, all]) => `${some} of ${all} layers are on the GPU`],
  [/(\S+) +model buffer size = +([\d.]+) MiB/, ([where, size]) => `weights: ${amount(size!)} in ${getPlace(where!)}`],
  [/(\S+) +KV buffer size = +([\d.]+) MiB/, ([where, size]) => `context: ${amount(size!)} in ${getPlace(where!)}`],
  [
    /n_slots = (\d+), n_ctx_slot = (\d+)/,
    ([slots, context]) => `answers ${many(slots!, 'request')} at once, each with a context of ${context} tokens`
  ],
  [/llama_server: model loaded/, () => 'is loaded and takes requests'],
  [
    /task (\d+) \| +prompt eval time = .*\/ +(\d+) tokens .*?([\d.]+) tokens per second/,
    ([task, count, speed], prompts) => {
      prompts.set(task!, { count: count!, speed: speed! })
      return undefined
    }
  ],
  [
    /task (\d+) \| +eval time = .*\/ +(\d+) tokens .*?([\d.]+) tokens per second/,
    ([task, count, speed], prompts) => {
      const prompt = prompts.get(task!)
      prompts.delete(task!)
      const read = prompt ? `read ${many(prompt.count, 'token')} (${pace(prompt.speed)}), ` : ''
      return `request ${task}: ${read}wrote ${many(count!, 'token')} (${pace(speed!)})`
    }
  ],
  [/release: id +\d+ \| task (\d+) \|.* truncated = 1/, ([task]) => `request ${task}: the context was full`],
  // A level, a component, a function, then the message.
  [/^[EF] (?:\S+ +[^:]+: )?(.+)/, ([message]) => `error: ${message}`],
  [/^W (?:\S+ +[^:]+: )?(.+)/, ([message]) => `warning: ${message}`]
]

const many = (count: string, what: string) => `${count} ${what}${count === '1' ? '' : 's'}`
const pace = (speed: string) => `${Number(speed) < 10 ? Number(speed).toFixed(1) : Math.round(Number(speed))} tokens/s`
const amount = (mebibytes: string) => formatBytes(Number(mebibytes) * 2 ** 20)
const getPlace = (buffer: string) => (/^CPU/.test(buffer) ? 'main memory' : `the memory of ${buffer}`)

/** Explains an engine's log in plain words, without clients' lines. @param dropped number of dropped earlier lines */
export function plainEvents(
  lines: readonly string[],
  dropped: number,
  isQuoted: (line: string) => boolean
): NonNullable<EngineLogRecord['events']> {
  const prompts: Prompts = new Map()
  return lines.flatMap((line, index) => {
    if (isQuoted(line)) return []
    for (const [pattern, say] of RULES) {
      const found = pattern.exec(line)
      if (!found) continue
      const text = say(found.slice(1), prompts)
      return text === undefined ? [] : [{ line: dropped + index, text }]
    }
    return []
  })
}
