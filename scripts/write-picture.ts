/**
 * Draws docs/pictures/terminal.svg: a session on a real terminal with the demo model at temperature 0, so that the same
 * source gives the same picture.
 */
import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import xterm from '@xterm/headless'
import { packageRoot } from '../core/system/package-info.ts'

const COLUMNS = 74
const PROMPT = '\x1b[32m$\x1b[0m '
const COMMANDS = [
  'corral list',
  'corral run corral/tiny-chat "What is the capital of France?"',
  'echo "What is 7 + 8?" | corral run corral/tiny-chat',
  'corral ps'
]
/** Terminal colours 0 to 15, readable on the dark background. */
const COLOURS =
  '#3b4252 #bf616a #a3be8c #ebcb8b #81a1c1 #b48ead #88c0d0 #e5e9f0 #7b88a1 #bf616a #a3be8c #ebcb8b #81a1c1 #b48ead #8fbcbb #eceff4'.split(
    ' '
  )
const [BACKGROUND, TEXT, DIM] = ['#2e3440', '#d8dee9', '#8791a5']
const [CHARACTER, LINE, MARGIN] = [8.43, 19, 16]

async function recorded(command: string, env: NodeJS.ProcessEnv): Promise<string> {
  const inside = `stty cols ${COLUMNS} rows 24; ${command}`
  const child = spawn('script', ['-qec', inside, '/dev/null'], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  let output = ''
  child.stdout.setEncoding('utf8').on('data', text => {
    output += text
  })
  const code = await new Promise(resolve => child.once('close', resolve))
  if (code !== 0) throw new Error(`"${command}" ended with ${code}:\n${output}`)
  return output
}

const escaped = (text: string) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')

async function draw(output: string): Promise<string> {
  const terminal = new xterm.Terminal({ cols: COLUMNS, rows: 60, allowProposedApi: true })
  await new Promise<void>(done => terminal.write(output.replace(/\r?\n/g, '\r\n'), done))
  const { active } = terminal.buffer
  const lines = Array.from({ length: active.length }, (_, row) => active.getLine(row)!)
  while (lines.at(-1)?.translateToString(true) === '') lines.pop()
  const texts = lines.flatMap((line, row) => {
    const runs: { at: number; text: string; style: string }[] = []
    for (let at = 0; at < COLUMNS; at++) {
      const cell = line.getCell(at)
      if (!cell || cell.getWidth() === 0) continue
      const colour = cell.isFgPalette() ? (COLOURS[cell.getFgColor()] ?? TEXT) : cell.isDim() ? DIM : TEXT
      const style = `fill="${colour}"${cell.isBold() ? ' font-weight="bold"' : ''}`
      const last = runs.at(-1)
      if (last?.style === style) last.text += cell.getChars() || ' '
      else runs.push({ at, text: cell.getChars() || ' ', style })
    }
    const y = MARGIN + 14 + row * LINE
    return runs
      .filter(({ text }) => text.trim() !== '')
      .map(
        ({ at, text, style }) =>
          `<text x="${(MARGIN + at * CHARACTER).toFixed(1)}" y="${y}" ${style}>${escaped(text.trimEnd())}</text>`
      )
  })
  const [width, height] = [Math.round(2 * MARGIN + COLUMNS * CHARACTER), 2 * MARGIN + lines.length * LINE]
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14" xml:space="preserve">
<title>corral in a terminal</title>
<rect width="100%" height="100%" rx="8" fill="${BACKGROUND}"/>
${texts.join('\n')}
</svg>
`
}

const folder = mkdtempSync(join(tmpdir(), 'corral-picture-'))
const home = join(folder, 'home')
mkdirSync(home)
writeFileSync(join(home, 'config.yaml'), 'port: 0\ndefaults: { temperature: 0 }\n')
const main = join(packageRoot, 'dist', 'command-line', 'main.js')
const env = { ...process.env, CORRAL_HOME: home, CORRAL_HISTORY: 'off', TERM: 'xterm-256color', FORCE_COLOR: '1' }
writeFileSync(join(folder, 'corral'), `#!/bin/sh\nexec ${process.execPath} ${main} "$@"\n`, { mode: 0o755 })
const server = spawn(process.execPath, [main, 'serve'], { cwd: home, env, stdio: ['ignore', 'pipe', 'inherit'] })
try {
  await new Promise<void>((resolve, reject) => {
    server.once('exit', code => reject(new Error(`corral serve ended with ${code}`)))
    server.stdout.setEncoding('utf8').on('data', (text: string) => text.includes('listens on') && resolve())
  })
  const inPath = { ...env, PATH: `${folder}:${process.env.PATH}` }
  // Loads the model first, so that the picture does not show the progress.
  await recorded('corral run corral/tiny-chat Hello', inPath)
  let output = ''
  for (const command of COMMANDS) {
    const shown = (await recorded(command, inPath)).replace(/\d+ (seconds?|minutes?) ago/g, 'just now')
    output += `${PROMPT}${command}\n${shown.trimEnd()}\n\n`
  }
  const path = join(packageRoot, 'docs', 'pictures', 'terminal.svg')
  mkdirSync(join(path, '..'), { recursive: true })
  writeFileSync(path, await draw(output.trimEnd()))
  console.log(`Wrote ${path}`)
} finally {
  server.kill('SIGTERM')
  await new Promise(resolve => (server.exitCode === null ? server.once('exit', resolve) : resolve(undefined)))
  rmSync(folder, { recursive: true, force: true })
}
