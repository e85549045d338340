import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { ResponseStreamEvent } from 'openai/resources/responses/responses'
import type { Test } from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'

/** Types that the official client declares, by the file that declares them. */
const MODULES = {
  Response: 'responses/responses',
  ResponseItem: 'responses/responses',
  ResponseStreamEvent: 'responses/responses',
  ChatCompletion: 'chat/completions/completions',
  ChatCompletionChunk: 'chat/completions/completions',
  Completion: 'completions',
  CreateEmbeddingResponse: 'embeddings'
}
export type Declared = keyof typeof MODULES

/** JSON values to check. JSON is also a valid TypeScript type, which accepts only the same value. */
const values: string[] = []

/** Notes a value that must have a type of the official client. Call `typeFaults` at the end of the file. */
export function mustBe(name: Declared, value: unknown): void {
  // The client computes `output_text`.
  const json = JSON.stringify(value, (_, field) =>
    field?.object === 'response' ? { output_text: '', ...field } : field
  )
  values.push(`Is<${name}, ${json}>`)
}

/** Compiles the types of all noted values. @returns what the compiler reports */
export function typeFaults(): string {
  const cache = join(packageRoot, '.cache')
  mkdirSync(cache, { recursive: true })
  const folder = mkdtempSync(join(cache, 'types-'))
  const imports = Object.entries(MODULES).map(
    ([name, file]) => `import type { ${name} } from 'openai/resources/${file}'`
  )
  const checks = values.splice(0).map((value, index) => `export type V${index} = ${value}`)
  const source = [...imports, 'type Is<Declared, Value extends Declared> = Value', ...checks].join('\n')
  try {
    const file = join(folder, 'values.ts')
    writeFileSync(file, source)
    const tsc = join(packageRoot, 'node_modules', 'typescript', 'lib', 'tsc.js')
    const options = [
      '--ignoreConfig',
      '--noEmit',
      '--strict',
      '--skipLibCheck',
      '--module',
      'nodenext',
      '--types',
      'node'
    ]
    return spawnSync(process.execPath, [tsc, ...options, file], { encoding: 'utf8' }).stdout
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

export async function collectEvents(stream: AsyncIterable<ResponseStreamEvent>): Promise<ResponseStreamEvent[]> {
  const events: ResponseStreamEvent[] = []
  for await (const event of stream) events.push(event)
  return events
}

/** Checks the rules that apply to every response stream. `typeFaults` checks the types. */
export function checkEvents(t: Test, events: ResponseStreamEvent[]): void {
  for (const event of events) mustBe('ResponseStreamEvent', event)
  t.strictSame(
    events.map(event => 'sequence_number' in event && event.sequence_number),
    events.map((_, index) => index),
    'sequence numbers have no gaps'
  )
}
