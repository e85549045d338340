import { moveCursor } from 'node:readline'
import { MultiBar, type SingleBar } from 'cli-progress'
import type { ScreenSize } from './transfer-layout.ts'

const REFRESH_MS = 200

/** Lines at the end of a terminal's standard error that are drawn anew as they change. */
export interface LiveLines {
  /** Takes them away. */
  clear(): void
}

/** Shows what `render` gives; its lines must be narrower than the terminal. */
export function showLiveLines(render: (size: ScreenSize) => string[]): LiveLines {
  const { stderr } = process
  let shown: string[] = []
  let slots: SingleBar[] = []
  let display = open()

  function open(): MultiBar {
    return new MultiBar({
      stream: stderr,
      // Each bar is one line of text: what stands in it is decided together with the other lines.
      format: (_options, _params, { line }: { line: string }) => line,
      fps: 1000 / REFRESH_MS,
      hideCursor: true,
      clearOnComplete: true
    })
  }
  function draw(): void {
    shown = render({ columns: stderr.columns || 80, rows: stderr.rows || 24 })
    shown.forEach((line, index) => {
      if (slots[index]) slots[index].update({ line })
      else slots.push(display.create(1, 0, { line }))
    })
    for (const slot of slots.splice(shown.length)) display.remove(slot)
  }
  function close(): void {
    if (slots.length > 0) display.stop()
    slots = []
  }
  /** Terminals that became narrower have wrapped what stands there: it takes more lines than were written. */
  function resized(): void {
    const columns = stderr.columns || 80
    const more = shown.reduce((sum, line) => sum + Math.max(0, Math.ceil(line.length / columns) - 1), 0)
    if (more > 0 && slots.length > 0) moveCursor(stderr, 0, -more)
    close()
    display = open()
    draw()
  }

  const timer = setInterval(draw, REFRESH_MS)
  stderr.on('resize', resized)
  draw()
  return {
    clear() {
      clearInterval(timer)
      stderr.off('resize', resized)
      close()
    }
  }
}
