import xterm from '@xterm/headless'

/**
 * The content of a terminal, including scrolled lines. `wrapped` has the indices of lines that the terminal wrapped.
 */
export interface Shown {
  lines: string[]
  wrapped: number[]
}

/** A resizable terminal with 24 rows. */
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

/** The content of a terminal after this output. */
export async function renderScreen(output: string, columns: number): Promise<Shown> {
  const screen = newScreen(columns)
  screen.write(output)
  return await screen.read()
}
