import { formatDuration } from '../core/system/duration.ts'

export interface ProgressLine {
  /** What is being done now. */
  update(text: string): void
  /** Takes the line away. */
  clear(): void
}

const FRAMES = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏']
const FRAME_MS = 100
/** Elsewhere than on a terminal lines stay, so few are written. */
const PLAIN_MS = 5000

/**
 * One line on standard error that says what is being waited for, with a spinner and the time it has taken. Where that is
 * no terminal: plain lines now and then, or nothing.
 */
export function showProgress(text: string, elsewhere: 'plain lines' | 'nothing'): ProgressLine {
  const { stderr } = process
  if (stderr.isTTY) return spinner(text)
  if (elsewhere === 'nothing') return { update() {}, clear() {} }
  let last = 0
  let shown = ''
  const line: ProgressLine = {
    update(next) {
      if (next === shown || Date.now() - last < PLAIN_MS) return
      last = Date.now()
      shown = next
      stderr.write(`${next}\n`)
    },
    clear() {}
  }
  line.update(text)
  return line
}

function spinner(first: string): ProgressLine {
  const { stderr } = process
  const began = Date.now()
  let text = first
  let frame = 0
  const draw = () => {
    const elapsed = Date.now() - began
    const time = elapsed < 2000 ? '' : ` (${formatDuration(elapsed)})`
    const line = `${FRAMES[frame++ % FRAMES.length]} ${text}${time}`
    // A line longer than the terminal would wrap, and only its last part be taken away.
    stderr.write(`\r\x1b[K${line.slice(0, Math.max(10, (stderr.columns || 80) - 1))}`)
  }
  const timer = setInterval(draw, FRAME_MS)
  return {
    update(next) {
      text = next
    },
    clear() {
      clearInterval(timer)
      stderr.write('\r\x1b[K')
    }
  }
}
