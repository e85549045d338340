import { spawn } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { parse } from 'yaml'
import { loadConfig } from '../../core/config/load.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { demoModelFile, randomEncoder, randomProjector } from '../../scripts/random-models.ts'
import { pythonIn } from '../clients/python-scripts.ts'
import { commandEnvironment, MAIN } from '../command-line/command.ts'
import { pngBytes } from '../plugins/apis/openai/media/support.ts'
import { layOutFiles, layOutOllama } from '../plugins/models/discovery/cache-layouts.ts'
import { NO_SETTINGS, quantizedModels, TINY_SAFETENSORS } from '../plugins/models/download/support.ts'
import { type Corral, startCorral } from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { newFolder } from '../support/folder.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { type Block, getBlocks } from './guides.ts'

/*
 * Runs the blocks of a guide unchanged except for the port, in page order. Each page gets a new data directory and
 * home, a hub emulator instead of Hugging Face (with small models under the names in the guides) and the real
 * llama-server. CONTRIBUTING.md explains the comments before blocks.
 */

const PORT = '11435'
/** If Python is not set up (npm run setup:python), its samples are skipped, except in CI. */
export const PYTHON = pythonIn('vendors')

interface Sandbox {
  corral: Corral
  /** Working directory of commands. */
  folder: string
  env: NodeJS.ProcessEnv
}

function program(path: string, script: string): void {
  writeFileSync(path, `#!/bin/sh\n${script}\n`)
  chmodSync(path, 0o755)
}

async function openSandbox(t: Test): Promise<Sandbox> {
  const folder = newFolder(t)
  const [home, programs] = [join(folder, 'home'), join(folder, 'programs')]
  for (const one of [home, programs]) mkdirSync(one)

  const demo = readFileSync(demoModelFile)
  const { Q8_0, Q4_K_M } = quantizedModels()
  const hub = await startHubEmulator(t, {
    repositories: {
      'Qwen/Qwen3-0.6B-GGUF': { files: { 'Qwen3-0.6B-Q8_0.gguf': Q8_0, 'Qwen3-0.6B-Q4_K_M.gguf': Q4_K_M } },
      'Qwen/Qwen3-0.6B': {
        files: Object.fromEntries(
          readdirSync(TINY_SAFETENSORS).map(name => [name, readFileSync(join(TINY_SAFETENSORS, name))])
        )
      },
      'ggml-org/SmolVLM-500M-Instruct-GGUF': {
        files: {
          'SmolVLM-500M-Instruct-Q8_0.gguf': demo,
          'mmproj-SmolVLM-500M-Instruct-Q8_0.gguf': randomProjector('vision')
        }
      },
      'ggml-org/embeddinggemma-300M-GGUF': { files: { 'embeddinggemma-300M-Q8_0.gguf': randomEncoder('embedding') } }
    }
  })
  // Files that users have on their disks.
  layOutFiles(home, {
    'Downloads/Qwen3-0.6B-Q8_0.gguf': Q8_0,
    '.lmstudio/models/lmstudio-community/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q4_K_M.gguf': Q4_K_M,
    'llama-swap/config.yaml': Buffer.from(
      'models:\n  echo:\n    cmd: /usr/bin/echo-server\n    proxy: http://127.0.0.1:9999\n'
    )
  })
  layOutOllama(join(home, '.ollama', 'models'), 'registry.ollama.ai/library/qwen3/0.6b', [
    { kind: 'model', bytes: Q8_0 }
  ])
  layOutFiles(folder, { 'picture.png': pngBytes() })
  symlinkSync(join(packageRoot, 'node_modules'), join(folder, 'node_modules'))

  const settings = { ...NO_SETTINGS, HOME: home, HF_ENDPOINT: hub.url, HF_HOME: join(home, '.cache', 'huggingface') }
  const corral = await startCorral(t, { env: settings })
  program(join(programs, 'corral'), `exec "${process.execPath}" "${MAIN}" "$@"`)
  // Replies with an error status fail their block.
  program(
    join(programs, 'curl'),
    'PATH=/usr/bin:/bin:/usr/local/bin exec curl --silent --show-error --fail-with-body "$@"'
  )
  const env = {
    ...commandEnvironment({ home: corral.home, env: settings }),
    CORRAL_LLAMA_CPP: engineBuildFolder(),
    PATH: `${programs}:${process.env.PATH}`
  }
  return { corral, folder, env }
}

/** Runs a program to its end and returns its output. */
async function run({ folder, env }: Sandbox, command: string, args: string[], input = '') {
  const child = spawn(command, args, { cwd: folder, env, stdio: ['pipe', 'pipe', 'pipe'] })
  let [stdout, stderr] = ['', '']
  child.stdout.setEncoding('utf8').on('data', text => {
    stdout += text
  })
  child.stderr.setEncoding('utf8').on('data', text => {
    stderr += text
  })
  child.stdin.on('error', () => {
    // The program may end before it has read everything.
  })
  child.stdin.end(input)
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject).once('close', resolve)
  })
  return { code, stdout, stderr }
}

/** Runs a command on a terminal, types one line per prompt, then Ctrl-D. */
async function atTerminal({ folder, env }: Sandbox, text: string, typed: string) {
  const child = spawn('script', ['-qec', `bash -e -c '${text.replaceAll("'", "'\\''")}'`, '/dev/null'], {
    cwd: folder,
    env: { ...env, TERM: 'xterm' },
    stdio: ['pipe', 'pipe', 'inherit']
  })
  let stdout = ''
  const keys = [`${typed}\r`, '\x04']
  let seen = 0
  child.stdout.setEncoding('utf8').on('data', piece => {
    stdout += piece
    // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what a terminal is sent
    if (/>>> (\x1b\[[\d;?]*[A-Za-z])*$/.test(stdout.slice(seen)) && keys.length > 0) {
      seen = stdout.length
      child.stdin.write(keys.shift()!)
    }
  })
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject).once('close', resolve)
  })
  return { code, stdout, stderr: '' }
}

/** Addresses of corral in another program's settings must answer as its API, and a command must exist. */
async function checkSettings(t: Test, sandbox: Sandbox, block: Block, where: string): Promise<void> {
  const addresses = [...block.text.matchAll(/https?:\/\/localhost:11435[^"'\s]*/g)].map(([address]) => address)
  const [, words] = /"command": "corral", "args": \[(.*?)\]/.exec(block.text) ?? []
  if (words !== undefined) {
    const args: string[] = JSON.parse(`[${words}]`)
    const { stdout } = await run(sandbox, 'corral', [...args, '--help'])
    t.match(stdout, `Usage: corral ${args.join(' ')}`, `${where}: the command exists`)
    return
  }
  t.ok(block.text.includes(PORT), `${where} names corral`)
  for (const address of addresses) {
    const { status } = await sandbox.corral.json(`${new URL(address).pathname.replace(/\/$/, '')}/models`)
    t.equal(status, 200, `${where}: ${address} is an API`)
  }
}

async function runBlock(sandbox: Sandbox, block: Block, number: number) {
  const { corral, folder, env } = sandbox
  const text = block.text.replaceAll(PORT, new URL(corral.url).port)
  const typed = /^at a terminal: (.*)$/.exec(block.directive ?? '')?.[1]
  if (block.language === 'sh') {
    if (typed !== undefined) return await atTerminal(sandbox, text.trim(), typed)
    return await run(sandbox, 'bash', ['-e', '-o', 'pipefail', '-c', text])
  }
  if (block.language === 'js') {
    const file = join(folder, `sample-${number}.mjs`)
    writeFileSync(file, text)
    return await run(sandbox, process.execPath, [file])
  }
  if (block.language === 'python') {
    if (!existsSync(PYTHON)) {
      if (process.env.CI) throw new Error('Run "npm run setup:python" first. Python samples need it.')
      return undefined
    }
    return await run({ ...sandbox, env: { ...env, PYTHONDONTWRITEBYTECODE: '1' } }, PYTHON, ['-'], text)
  }
  return undefined
}

/**
 * Runs the blocks of a page.
 * @param everyday skips blocks that need more than `npm ci`, namely Python
 */
export async function runPage(t: Test, page: string, { everyday = false } = {}): Promise<void> {
  const sandbox = await openSandbox(t)
  let ran = 0
  let printed: string | undefined
  for (const [number, block] of getBlocks(page).entries()) {
    const { language, directive = '', line } = block
    const where = `${page}:${line}`
    if (directive.startsWith('untested: ') || (everyday && language === 'python')) {
      printed = undefined
      continue
    }
    if (directive.startsWith('settings of ')) await checkSettings(t, sandbox, block, where)
    if (language === 'text' || (language === 'json' && directive === 'output')) {
      // If the command was skipped, there is no output to compare.
      if (printed !== undefined) compareOutput(t, block, printed, where)
      continue
    }
    const ended = await runBlock(sandbox, block, number)
    printed = ended?.stdout
    if (!ended) continue
    ran++
    const shown = { stdout: ended.stdout.slice(-2000), stderr: ended.stderr.slice(-2000) }
    if (directive === 'fails') {
      t.not(ended.code, 0, `${where} fails`, shown)
      continue
    }
    t.equal(ended.code, 0, `${where} works`, shown)
    t.notMatch(ended.stdout, /"error":(?! *null)|^error:/m, `${where} prints no error`)
  }
  t.ok(ran > 0, `${ran} blocks were run`)
}

/**
 * Each line of the page must be printed in this order. `…` matches anything, and so does each word with a digit if the
 * page says that its figures are from another run.
 */
function compareOutput(t: Test, block: Block, printed: string, where: string): void {
  const lines = printed.split('\n').map(line => line.trim())
  const literal = (text: string) => text.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&')
  const anyFigures = block.directive === 'figures of another run'
  let from = 0
  for (const line of block.text.trim().split('\n')) {
    const pattern = anyFigures
      ? line
          .trim()
          .split(/\s+/)
          .map(word => (/\d/.test(word) ? '\\S+' : literal(word)))
          .join('\\s+')
      : line.trim().split('…').map(literal).join('.*')
    const at = lines.findIndex((shown, index) => index >= from && new RegExp(`^${pattern}$`).test(shown))
    t.not(at, -1, `${where}: "${line}" is printed`, { printed })
    from = at + 1
  }
}

/** Checks JSON blocks, and settings against corral's schema if they are corral's. */
export async function checkData(t: Test, blocks: readonly Block[]): Promise<number> {
  const folder = t.testdir()
  let checked = 0
  for (const { page, line, language, text, directive = '' } of blocks) {
    const where = `${page}:${line}`
    if (directive.startsWith('untested: ') || (language !== 'json' && language !== 'yaml')) continue
    checked++
    if (language === 'json') t.doesNotThrow(() => JSON.parse(text), where)
    else if (directive.startsWith('settings of ')) t.doesNotThrow(() => parse(text), where)
    else {
      const file = join(folder, `${checked}.yaml`)
      writeFileSync(file, text)
      const flags = { config: file, home: folder }
      const loading = loadConfig({ flags, env: {}, cwd: folder, definitions: builtInPlugins })
      const mistakes = await loading.then(
        ({ unknown }) => unknown,
        error => [error]
      )
      t.same(mistakes, [], `${where} has no mistakes`)
    }
  }
  return checked
}
