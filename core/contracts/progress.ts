/** The progress of long work, for heartbeats, `/api/ps`, the log and progress bars. */
export interface Progress {
  phase:
    | 'queued'
    | 'waiting'
    | 'pulling'
    | 'downloading'
    | 'unpacking'
    | 'configuring'
    | 'building'
    | 'proving'
    | 'copying'
    | 'installing'
    | 'converting'
    | 'quantizing'
    | 'draining'
    | 'loading'
    | 'generating'
  /** The object of the work, such as `llama.cpp` or a file's name; empty if the phase says it all. */
  subject: string
  /** 0 to 1; absent if unknown. */
  fraction?: number
  /** Units done and in total (bytes for copies and downloads). */
  completed?: number
  total?: number
  /** The current step, if the work has several steps with a progress each. */
  step?: { number: number; of: number }
}

export type OnProgress = (progress: Progress) => void

/** One short line: `building llama.cpp 12%`. */
export function progressText(progress: Progress): string {
  const percent = progress.fraction === undefined ? '' : ` ${Math.floor(progress.fraction * 100)}%`
  return `${progress.phase}${progress.subject ? ` ${progress.subject}` : ''}${percent}`
}

/** Lets a caller follow and cancel work that it waits for. */
export interface Waiting {
  signal?: AbortSignal
  onProgress?: OnProgress
}
