import xterm from '@xterm/headless'

/** What a terminal shows, lines that scrolled away included; `wrapped` are the indices of lines that it had to wrap. */
export interface Shown {
  lines: string[]
  wrapped: number[]
}

/** A terminal of this many columns and 24 rows that can be resized. */
export function newScreen(columns: number) {
  const terminal = new xterm.Terminal({ cols: columns, rows: 24, scrollback: 10_000, allowProposedApi: true })
  let written = Promise.resolve()
  const write = (output: string) => {
    written = new Promise(done => terminal.write(output.replace(/\r?\n/g, '\r\n'), done))
  }
  return {
    write,
    async resize(to: number): Promise<void> {
      await written
      terminal.resize(to, 24)
    },
    async read(): Promise<Shown> {
      await written
      const { active } = terminal.buffer
      const rows = Array.from({ length: active.length }, (_, index) => active.getLine(index)!)
      const lines = rows.map(row => row.translateToString(true))
      while (lines.at(-1) === '') lines.pop()
      return { lines, wrapped: lines.flatMap((_, index) => (rows[index]!.isWrapped ? [index] : [])) }
    }
  }
}

/** What a terminal of this many columns shows after it was sent this. */
export async function screenOf(output: string, columns: number): Promise<Shown> {
  const screen = newScreen(columns)
  screen.write(output)
  return await screen.read()
}
