import { existsSync } from 'node:fs'
import { type Static, Type } from 'typebox'
import { ConfigError } from '../../../core/config/config-error.ts'
import { Bytes, Group, type ModelSettings, optional, Path, Timeout } from '../../../core/config/core-schema.ts'
import type { Operations } from '../../../core/contracts/engines.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { errorMessage } from '../../../core/errors.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { findExecutable } from '../../../core/system/child-process.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { isObject } from '../../../core/system/json-object.ts'
import type { RemoteServers } from '../remote-servers.ts'

export const Program = Group({
  command: Type.String({
    minLength: 1,
    description:
      'Program and arguments, without a shell; {port}, {model} (its "files", or else its name) and {key} (a fresh secret that requests carry) are filled in, also in "environment"'
  }),
  ...optional({
    kind: Type.Enum(['chat', 'embedding', 'rerank', 'transcribe', 'draw'], {
      description: 'What its models are for; chat if absent'
    }),
    ready: Type.String({
      pattern: '^/',
      description: 'Path that answers with a status below 300 once it is ready; /health if absent'
    }),
    base: Type.String({ pattern: '^(/.*)?$', description: "Path of its API in OpenAI's format; /v1 if absent" }),
    port: Type.Integer({
      minimum: 1,
      maximum: 65535,
      description: 'Port that its command fixes; a free one if absent'
    }),
    model: Type.String({
      minLength: 1,
      description: 'Name of its model in requests to it; the value of {model} if absent'
    }),
    parallel: Type.Integer({ minimum: 1, description: 'Maximum requests at the same time; 8 if absent' }),
    context: Type.Integer({ minimum: 1, description: 'Context size in tokens; 4096 if absent' }),
    capabilities: Type.Array(Type.Enum(['tools', 'thinking', 'vision', 'edit_image', 'vary_image']), {
      description: 'What a chat model can do, tools if absent; or an image model besides drawing, edit_image if absent'
    }),
    memory: Type.Record(Type.String(), Bytes({ description: 'Bytes' }), {
      description: 'Memory that it needs, by host or GPU as in "corral ps"; its main memory is measured if absent'
    }),
    sleep: Type.Object(
      {
        path: Type.String({ pattern: '^/', description: 'POST here makes it give up its memory' }),
        wake: Type.String({ pattern: '^/', description: 'POST here makes it ready again' }),
        for: Type.Optional(Timeout({ description: 'How long it sleeps before it is ended; 1h if absent' }))
      },
      { additionalProperties: false, description: 'How it sleeps instead of being ended' }
    ),
    paths: Type.Array(Type.String({ pattern: '^/v1/[\\w.-]+(/[\\w.-]+)*$' }), {
      uniqueItems: true,
      description: 'More paths of its API that clients may use; corral passes on POST requests that name the model'
    }),
    environment: Type.Record(Type.String(), Type.String(), { description: 'More environment variables' }),
    stop: Type.String({
      minLength: 1,
      description: 'Command that ends it before it gets SIGTERM, such as "docker stop" for a container'
    }),
    directory: Path({ description: 'Its working directory' }),
    start_timeout: Timeout({ description: 'How long it may take to become ready; 10m if absent' }),
    stop_timeout: Timeout({ description: 'How long it may take to end before it is killed; 5s if absent' })
  })
})

export type ProgramSettings = ReturnType<typeof readProgram>

/** A model, its program, and the path or name that replaces `{model}` in the command. */
export interface ProgramModel {
  program: ProgramSettings
  model: string
  own?: OwnProgram
}

/** A program that corral itself finds or installs. */
export interface OwnProgram {
  /** Returns its program and arguments, as `command` in the settings. @throws CorralError `runtime_missing` */
  command(waiting: Waiting): Promise<string[]>
  /** Its calls, which differ from OpenAI's API. @param usual the calls for programs with that API */
  operations(ask: RemoteServers['ask'], usual: Operations): Operations
}

export const mistake = (setting: string, message: string) => new ConfigError([{ where: setting, setting, message }])

/** Fills in what a program's settings leave out. Times are milliseconds. */
export function readProgram(name: string, program: Static<typeof Program>) {
  const { kind = 'chat', memory, sleep } = program
  const time = (given: string | number | undefined, usual: string) => parseDuration(given ?? usual)!
  const command = readCommand(name, 'command', program.command)
  const texts = [...command, ...Object.values(program.environment ?? {})]
  if (program.port === undefined && !texts.some(text => text.includes('{port}'))) {
    throw mistake(
      `engines.${name}.command`,
      'Neither the command nor "environment" contains {port}. Add it where the program gets its port, or set "port".'
    )
  }
  return {
    name,
    kind,
    /** What to do if it does not start. */
    advice: `Correct "command" under engines.${name}.`,
    command,
    stop: program.stop === undefined ? undefined : readCommand(name, 'stop', program.stop),
    model: program.model,
    paths: program.paths ?? [],
    environment: program.environment ?? {},
    directory: program.directory,
    port: program.port,
    ready: program.ready ?? '/health',
    base: program.base ?? '/v1',
    contextSize: program.context ?? 4096,
    slots: program.parallel ?? 8,
    memory: memory && Object.fromEntries(Object.entries(memory).map(([pool, bytes]) => [pool, parseBytes(bytes)!])),
    sleep: sleep && { path: sleep.path, wake: sleep.wake, for: time(sleep.for, '1h') },
    startTimeout: time(program.start_timeout, '10m'),
    stopTimeout: time(program.stop_timeout, '5s')
  }
}

/** @throws ConfigError as `splitCommand` */
function readCommand(name: string, setting: 'command' | 'stop', command: string): string[] {
  try {
    return splitCommand(command)
  } catch (error) {
    throw mistake(`engines.${name}.${setting}`, `The command cannot be read: ${errorMessage(error)}.`)
  }
}

/** A quoted part, an escaped character, white space, or plain text. */
const PIECE = /"((?:\\["\\]|[^"])*)"|'([^']*)'|\\([\s"'\\])|(\s+)|([^\s"'\\]+|\\)/gy

/**
 * Splits a command into its program and arguments, as a shell does without expanding anything. No shell reads it.
 * @throws Error if a quotation mark is not closed, or if there is no program
 */
export function splitCommand(command: string): string[] {
  const words: string[] = []
  let word: string | undefined
  let read = 0
  for (const [piece, double, single, escaped, space, plain] of command.matchAll(PIECE)) {
    read += piece.length
    if (space === undefined) word = (word ?? '') + (double?.replace(/\\(["\\])/g, '$1') ?? single ?? escaped ?? plain)
    else if (word !== undefined) {
      words.push(word)
      word = undefined
    }
  }
  if (read < command.length) throw new Error(`the quotation mark ${command[read]} is not closed`)
  if (word !== undefined) words.push(word)
  if (words.length === 0) throw new Error('it is empty')
  return words
}

/** Replaces `{port}`, `{model}` and `{key}`, a fresh secret that requests carry as a bearer token. */
export function fillIn(text: string, values: Record<'port' | 'model' | 'key', string>): string {
  return text.replace(/\{(port|model|key)\}/g, (_, name: keyof typeof values) => values[name])
}

/** Sentences about programs, and files of their models, that do not exist on this machine. */
export function missingPrograms(
  section: Readonly<Record<string, unknown>> = {},
  models: Readonly<Record<string, Pick<ModelSettings, 'engine' | 'files'>>> = {}
): string[] {
  const programs = Object.entries(section).flatMap(([name, settings]) =>
    (['command', 'stop'] as const).flatMap(setting => {
      const command = isObject(settings) ? settings[setting] : undefined
      const [program] = command === undefined ? [] : readCommand(name, setting, String(command))
      if (program === undefined || findExecutable(program)) return []
      return `The program "${program}" of engines.${name} was not found. Install it, or write its whole path in "${setting}".`
    })
  )
  const files = Object.entries(models).flatMap(([name, { engine, files }]) => {
    if (engine === undefined || files === undefined || existsSync(files)) return []
    return `${files}, the file of model "${name}", was not found. Correct "files" under models.${name}.`
  })
  return [...programs, ...files]
}
