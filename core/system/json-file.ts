import { readFileSync } from 'node:fs'
import { mkdir, readFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { Static, TSchema } from 'typebox'
import writeFileAtomic from 'write-file-atomic'
import { errorMessage, whenMissing } from '../errors.ts'
import { isObject } from './json-object.ts'
import { faultSentence, findFault } from './schema-check.ts'

/** The value of a JSON text, or a clause that says why it cannot be used, such as "it is not JSON". */
export type ParsedJson<Value> = { value: Value; fault?: undefined } | { value?: undefined; fault: string }

/** Parses JSON that corral wrote, and checks it. */
export function parseJson<Schema extends TSchema>(text: string, schema: Schema): ParsedJson<Static<Schema>> {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    return { fault: `it is not JSON: ${errorMessage(error)}` }
  }
  return checkJson(value, schema)
}

/** Checks a parsed value. If the schema names one `version`, later versions are refused with that reason. */
export function checkJson<Schema extends TSchema>(value: unknown, schema: Schema): ParsedJson<Static<Schema>> {
  const known = (schema as { properties?: { version?: { const?: unknown } } }).properties?.version?.const
  if (isObject(value) && typeof value.version === 'number' && typeof known === 'number' && value.version > known) {
    return { fault: `a newer corral wrote it (version ${value.version}; this one reads ${known})` }
  }
  const fault = findFault(schema, value)
  return fault ? { fault: faultSentence(fault, 'it').replace(/\.$/, '') } : { value: value as Static<Schema> }
}

/** Reads a JSON file. Returns undefined if it does not exist. @throws errors of the disk */
export async function readJsonFile<Schema extends TSchema>(
  path: string,
  schema: Schema
): Promise<ParsedJson<Static<Schema>> | undefined> {
  const text = await readFile(path, 'utf8').catch(whenMissing)
  return text === undefined ? undefined : parseJson(text, schema)
}

/** Synchronous `readJsonFile`. */
export function readJsonFileSync<Schema extends TSchema>(
  path: string,
  schema: Schema
): ParsedJson<Static<Schema>> | undefined {
  try {
    return parseJson(readFileSync(path, 'utf8'), schema)
  } catch (error) {
    return whenMissing(error)
  }
}

/** Writes a JSON file atomically and creates its folder. `fsync: false` suits files that do not outlive the process. */
export async function writeJsonFile(
  path: string,
  value: unknown,
  { mode, pretty = false, fsync = true }: { mode?: number; pretty?: boolean; fsync?: boolean } = {}
): Promise<void> {
  await mkdir(dirname(path), { recursive: true })
  await writeFileAtomic(path, `${JSON.stringify(value, undefined, pretty ? 2 : undefined)}\n`, { mode, fsync })
}
