import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError } from '../../core/errors.ts'
import type { EngineLine } from './engine-output.ts'
import type { Upstream } from './upstream.ts'

/** What an engine says about itself once it serves. */
export interface LoadedFacts {
  /** Tokens of one slot. */
  contextSize: number
  slots: number
}

/** The time between an engine's start and its first request: what it reports, and what may end it. */
export interface Loading {
  /** Aborted when the load has failed, with the error as reason. */
  readonly signal: AbortSignal
  readonly active: boolean
  /** It has printed these; each line is a sign of progress. */
  note(lines: readonly EngineLine[]): void
  fail(error: unknown): void
  /** Resolves when the engine serves; rejects when the load has failed. */
  untilServing(upstream: Upstream): Promise<LoadedFacts>
  close(): void
}

/** Milliseconds between looks at `/health` of a build that does not report its state. */
const POLL_INTERVAL = 250

async function getJson(upstream: Upstream, path: string, signal: AbortSignal) {
  const { status, body } = await upstream.request({ method: 'GET', path, signal })
  const content = await text(body)
  try {
    return { status, value: JSON.parse(content) as unknown }
  } catch {
    return { status, value: undefined }
  }
}

/** Reads `/props`, in which builds of different age agree. */
export function factsFromProps(props: unknown): LoadedFacts | undefined {
  const { total_slots: slots, default_generation_settings: settings } = (props ?? {}) as Record<string, unknown>
  const contextSize = (settings as { n_ctx?: unknown } | undefined)?.n_ctx
  return typeof slots === 'number' && typeof contextSize === 'number' ? { contextSize, slots } : undefined
}

/** Follows a load for its caller: passes progress on, and gives up when the caller does or when nothing moves. */
export function loadingOf({ signal: outer, onProgress }: Waiting, timeout: number, subject: string): Loading {
  const control = new AbortController()
  const signal = outer ? AbortSignal.any([outer, control.signal]) : control.signal
  let active = true
  let fraction = 0
  let speaksStates = false
  let markReady = () => {}
  const reportedReady = new Promise<void>(resolve => {
    markReady = resolve
  })

  const fail = (error: unknown) => {
    if (active) control.abort(error)
  }
  const stall = setTimeout(() => {
    const seconds = Math.round(timeout / 1000)
    fail(
      new CorralError(
        'load_timeout',
        `Loading the model "${subject}" made no progress for ${seconds} s and was stopped. Check its disk, or raise runtimes.load_timeout.`,
        { details: { cause: 'stalled' } }
      )
    )
  }, timeout)

  const failed = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
  failed.catch(() => {
    // Handled where it is awaited; when nothing awaits it, the load has already ended.
  })

  /** For builds that do not speak the child protocol. */
  async function pollHealth(upstream: Upstream): Promise<void> {
    for (;;) {
      await sleep(POLL_INTERVAL, undefined, { signal })
      if (speaksStates) return reportedReady
      try {
        const { status } = await getJson(upstream, '/health', signal)
        if (status === 200) return
      } catch {
        // Not listening yet; the signal is aborted when it never will.
        signal.throwIfAborted()
      }
    }
  }

  async function serve(upstream: Upstream): Promise<LoadedFacts> {
    await Promise.race([reportedReady, pollHealth(upstream)])
    const { status, value } = await getJson(upstream, '/props', signal)
    const facts = factsFromProps(value)
    if (facts) return facts
    throw new CorralError(
      'load_failed',
      `The engine of "${subject}" started, but GET /props gave no usable answer (status ${status}). Use a newer llama.cpp build.`,
      { details: { cause: 'unknown' } }
    )
  }

  onProgress?.({ phase: 'loading', subject: '' })
  return {
    signal,
    get active() {
      return active
    },
    note(lines) {
      if (active) stall.refresh()
      for (const line of lines) {
        if (line.type === 'text' || line.type === 'memory') continue
        speaksStates = true
        if (line.type === 'ready') markReady()
        else if (line.type === 'loading' && active && line.fraction !== undefined && line.fraction >= fraction) {
          fraction = line.fraction
          onProgress?.({ phase: 'loading', subject: '', fraction })
        }
      }
    },
    fail,
    async untilServing(upstream) {
      signal.throwIfAborted()
      return await Promise.race([failed, serve(upstream)])
    },
    close() {
      active = false
      clearTimeout(stall)
    }
  }
}

interface LoadWarning {
  pattern: RegExp
  sentence: string
  /** Not shown when no GPU layers were requested. */
  unlessRequested?: boolean
}

/** Lines of a load that succeeds, but with limitations. `$1` and so on stand for the pattern's groups. */
const WARNINGS: LoadWarning[] = [
  {
    pattern: /retrying without pipeline parallelism/,
    sentence:
      'The GPUs have too little memory for pipeline parallelism, which is off now: long prompts are read more slowly. A smaller num_ctx or fewer GPU layers would allow it.'
  },
  {
    pattern: /failed to parse chat template \(defaulting to chatml\)/,
    sentence:
      "llama.cpp cannot use the model's chat template and takes another one (chatml): answers may be badly formed. Give one with --chat-template-file."
  },
  {
    unlessRequested: true,
    pattern: /offloaded 0\/(\d+) layers to GPU/,
    sentence:
      'None of the $1 layers is on a GPU although this llama.cpp build can use one: answers come from the processor. Check n_gpu_layers and the free memory of the GPU (corral doctor).'
  },
  {
    pattern: /ggml_\w+_init: failed to initialize (?:CUDA|ROCm|HIP|MUSA|SYCL)[:,] (.+)/,
    sentence: 'The GPU cannot be used ($1): answers come from the processor. Check its driver (corral doctor).'
  },
  {
    pattern: /warning: failed to mlock/,
    sentence:
      'The model could not be kept in memory (mlock) and may be swapped out. Raise the limit on locked memory (ulimit -l).'
  }
]

/** Warnings about a load that succeeded, each one once. */
export function loadWarnings(lines: readonly string[], options: { gpuLayers: number }): string[] {
  return WARNINGS.flatMap(({ pattern, sentence, unlessRequested }) => {
    const match = lines.map(line => pattern.exec(line)).find(found => found !== null)
    if (!match || (unlessRequested && options.gpuLayers === 0)) return []
    return [sentence.replace(/\$(\d)/g, (_, number) => match[Number(number)] ?? '')]
  })
}
