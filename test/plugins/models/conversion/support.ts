import { chmodSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { environmentName, LOCK_FOLDER } from '../../../../plugins/models/conversion/python-environment.ts'
import { TINY_SAFETENSORS } from '../../../support/conversion-python.ts'
import { CAPITAL_QUESTION, type Corral, type CorralOptions, startCorral } from '../../../support/corral.ts'
import { newFolder } from '../../../support/folder.ts'

export const MODEL = 'test/tiny-st'
const GGUF = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')

/** Creates a folder that is removed after the test. `t.testdir()` returns the same folder each time and empties it. */
export function temporaryFolder(t: Test): string {
  const folder = newFolder(t)
  return folder
}

/** Starts a corral whose conversions use this Python. */
export function startConverting(t: Test, python: string, options: CorralOptions = {}): Promise<Corral> {
  return startCorral(t, {
    ...options,
    config: `conversion:\n  python: ${JSON.stringify(python)}\n${options.config ?? ''}`
  })
}

/** Copies the SafeTensors demo model to a folder that a test may change. */
export function modelFolder(t: Test, change: (folder: string) => void = () => undefined): string {
  const folder = join(temporaryFolder(t), 'model')
  cpSync(TINY_SAFETENSORS, folder, { recursive: true })
  change(folder)
  return folder
}

export async function importModel(corral: Corral, path: string, name = MODEL): Promise<void> {
  const { status, body } = await corral.json('/api/import', { path, name })
  if (status !== 200) throw new Error(`The import of ${path} failed: ${JSON.stringify(body)}`)
}

/** Returns the folder with the files of a model's only variant. */
export function storedFolder(corral: Corral, name = MODEL): string {
  const model = join(corral.home, 'models', ...name.split('/'))
  const revision = readdirSync(model, { withFileTypes: true }).find(entry => entry.isDirectory())
  return join(model, revision!.name)
}

/** Lists the folder of the conversions, hidden folders included. */
export function convertedFolders(corral: Corral, name = MODEL): string[] {
  const folder = join(storedFolder(corral, name), 'converted')
  return existsSync(folder) ? readdirSync(folder).sort() : []
}

/** Lists storage's staging folder, where conversions work. */
export function stagedFolders(corral: Corral): string[] {
  const folder = join(corral.home, 'models', '.staging')
  return existsSync(folder) ? readdirSync(folder) : []
}

/** Asks for the capital of France with these options. */
export function capital(corral: Corral, options: object, model = MODEL) {
  return corral.json('/api/chat', {
    model,
    stream: false,
    messages: [CAPITAL_QUESTION],
    options: { temperature: 0, ...options }
  })
}

/** Places an environment as an installation would leave it, with a test's own Python. */
export async function placeEnvironment(corral: Corral, python: string): Promise<void> {
  const environment = join(corral.home, 'python', await environmentName(LOCK_FOLDER))
  mkdirSync(join(environment, 'bin'), { recursive: true })
  cpSync(python, join(environment, 'bin', 'python'))
  writeFileSync(join(environment, 'complete.json'), '{}')
}

/** A scripted Python whose "converter" can be paused or made to fail. Otherwise it writes the demo model's GGUF. */
export interface ScriptedPython {
  path: string
  /** Makes conversions pause with half a file written. */
  hold(): void
  letGo(): void
  /** Restores the initial behaviour. */
  reset(): void
  /** Makes conversions print this and fail. */
  failWith(text: string, where?: 'projector'): void
  /** Process ids of all converters so far. */
  runs(): number[]
}

export function scriptedPython(t: Test): ScriptedPython {
  const folder = temporaryFolder(t)
  const path = join(folder, 'python')
  writeFileSync(
    path,
    `#!/bin/sh
case "$*" in
  *convert_hf_to_gguf.py*) ;;
  *) echo '{}'; exit 0 ;;
esac
echo $$ >> '${folder}/runs'
case "$*" in
  *--mmproj*) if [ -e '${folder}/failure-projector' ]; then cat '${folder}/failure-projector' >&2; exit 1; fi ;;
esac
while [ "$1" != --outfile ]; do shift; done
head -c 100000 '${GGUF}' > "$2"
echo 'Writing:   0%|          | 0.00/4.07M [00:00<?, ?byte/s]' >&2
echo 'Writing:  42%|####      | 1.71M/4.07M [00:00<00:00, 44.4Mbyte/s]' >&2
while [ -e '${folder}/hold' ]; do sleep 0.05; done
if [ -e '${folder}/failure' ]; then cat '${folder}/failure' >&2; exit 1; fi
cat '${GGUF}' > "$2"
echo 'Writing: 100%|##########| 4.07M/4.07M [00:00<00:00, 44.4Mbyte/s]' >&2
`
  )
  chmodSync(path, 0o755)
  return {
    path,
    hold: () => writeFileSync(join(folder, 'hold'), ''),
    letGo: () => rmSync(join(folder, 'hold'), { force: true }),
    reset: () => {
      for (const name of ['hold', 'failure', 'failure-projector', 'runs']) rmSync(join(folder, name), { force: true })
    },
    failWith: (text, where) => writeFileSync(join(folder, where ? `failure-${where}` : 'failure'), text),
    runs: () =>
      existsSync(join(folder, 'runs')) ? readFileSync(join(folder, 'runs'), 'utf8').trim().split('\n').map(Number) : []
  }
}
