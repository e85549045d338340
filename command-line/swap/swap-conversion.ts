import { basename, join } from 'node:path'
import { parse } from 'yaml'
import { readYaml } from '../../core/config/yaml-file.ts'
import { errorMessage } from '../../core/errors.ts'
import { parseModelName, parseRequestedName } from '../../core/models/model-name.ts'
import { isObject } from '../../core/system/json-object.ts'
import { readServerCommand } from '../../runtimes/llama-server/server-command.ts'
import { splitCommand } from '../../runtimes/remote/programs/program-settings.ts'
import { shippedText } from '../shipped-text.ts'
import { groupConflicts, groupsFor } from './exclusion.ts'
import { expandMacros } from './macros.ts'

type Values = Record<string, unknown>

/** Settings of corral, and what is left to do. */
export interface Conversion {
  engines: Record<string, Values>
  models: Record<string, Values>
  /** Files that become models of the storage. */
  files: { path: string; model: string }[]
  /** Names of models to pull. */
  pulls: string[]
  /** Sentences about everything that has no setting in corral. */
  notes: string[]
}

interface Surroundings {
  env: NodeJS.ProcessEnv
  /** The folder of the configuration, in which relative paths are looked for. */
  folder: string
  exists(path: string): boolean
}

/** A model of llama-swap, its name in corral, and how to add a note about one of its keys. */
interface SwapModel {
  id: string
  name: string
  settings: Values
  note(key: string, advice?: string): void
}

const HANDLED = {
  top: 'models macros groups routing hooks globalTTL unloadTimeout'.split(' '),
  model: 'cmd macros env aliases ttl concurrencyLimit filters'.split(' '),
  program: 'cmdStop proxy checkEndpoint unloadTimeout useModelName capabilities'.split(' ')
}
/** The owner of names that have none. */
const OWNER = 'llama-swap'
/** Arguments of common servers for the size of the context. */
const CONTEXT = /^(?:-c|--ctx-size|--max-model-len|--context-length|--n_ctx)(?:=(\d+))?$/
const LOCAL = /^(localhost|127\.\d+\.\d+\.\d+|\[::1?\]|0\.0\.0\.0)$/

const toValues = (value: unknown): Values => (isObject(value) ? value : {})
const toTexts = (value: unknown) => (Array.isArray(value) ? value.map(String) : [])

/** Leaves out settings that are undefined or empty. */
const given = (settings: Values) =>
  Object.fromEntries(
    Object.entries(settings).filter(([, value]) =>
      Array.isArray(value) || isObject(value) ? Object.keys(value).length > 0 : value !== undefined && value !== ''
    )
  )

/**
 * Converts a configuration of llama-swap.
 * @throws Error with a sentence if it cannot be read
 */
export function convertSwapConfig(text: string, surroundings: Surroundings): Conversion {
  const { value, mistakes } = readYaml(text)
  const [mistake] = mistakes
  if (mistake) throw new Error(`line ${mistake.place.line}: ${mistake.message}`)
  const { models: sections, macros, ...rest } = toValues(value)
  if (!Object.values(toValues(sections)).some(model => toValues(model).cmd !== undefined))
    throw new Error('it is not a configuration of llama-swap: no entry of "models" has a "cmd".')
  const { env } = surroundings
  const global = Object.entries(toValues(macros))
  const top = expandMacros(rest, new Map(global), env, 'The configuration') as Values
  const advice: Record<string, Record<string, string>> = parse(shippedText('llama-swap.yaml'))
  const found = new Map<string, string[]>()
  const add = (key: string, sentence = 'It is unknown.') => found.set(sentence, [...(found.get(sentence) ?? []), key])

  const result: Conversion = { engines: {}, models: {}, files: [], pulls: [], notes: [] }
  const names = new Set<string>()
  const models = Object.entries(toValues(sections)).map(([id, model]): SwapModel => {
    const { macros: own, ...settings } = toValues(model)
    const all = new Map([['MODEL_ID', id], ...global, ...Object.entries(toValues(own))])
    for (const key of ['cmd', 'cmdStop']) settings[key] &&= withoutComments(settings[key])
    const note: SwapModel['note'] = (key, sentence = advice.model![key]) =>
      void add(`models.${id}${key && `.${key}`}`, sentence)
    const path = `models.${id}`
    return { id, name: toModelName(id, names), settings: expandMacros(settings, all, env, path) as Values, note }
  })
  const imported = models.filter(model => convertModel(model, top, surroundings, result))
  excludeOthers(imported, top, result)
  for (const wanted of toTexts(toValues(toValues(top.hooks).on_startup).preload)) {
    const model = imported.find(({ id, settings }) => id === wanted || toTexts(settings.aliases).includes(wanted))
    if (model) result.models[model.name]!.preload = true
    else add('hooks.on_startup.preload', `There is no model "${wanted}".`)
  }
  for (const key of Object.keys(top).filter(key => !HANDLED.top.includes(key))) add(key, advice.top![key])
  const { router, scheduler } = toValues(top.routing)
  if (scheduler) add('routing.scheduler', advice.top!.scheduler)
  if (toValues(router).use === 'matrix') add('routing.router.settings.matrix', advice.top!.matrix)
  result.notes.push(...[...found].map(([sentence, keys]) => `${keys.join(', ')}: ${sentence}`))
  return result
}

/** Adds a model, with a program or corral's own engine. Returns whether it was possible. */
function convertModel(model: SwapModel, top: Values, surroundings: Surroundings, result: Conversion): boolean {
  const { settings, note } = model
  const command = withoutComments(settings.cmd)
  let words: string[]
  try {
    words = splitCommand(command)
  } catch (error) {
    note('cmd', `It cannot be read (${errorMessage(error)}), so the model is left out.`)
    return false
  }
  const reason = addStored(model, words, top, surroundings, result)
  if (reason !== undefined) {
    if (reason !== '') note('cmd', `It stays a command, because ${reason}.`)
    const program = convertProgram(model, words, command, top, surroundings)
    if (!program) return false
    const engine = model.id.replace(/[^\w.-]+/g, '-')
    result.engines[engine] = program
    result.models[model.name] = { engine, ...modelSection(model, top) }
  }
  const handled = [...HANDLED.model, ...(reason === undefined ? [] : HANDLED.program)]
  for (const key of Object.keys(given(settings)).filter(key => !handled.includes(key))) note(key)
  for (const key of Object.keys(toValues(settings.filters))) note(`filters.${key}`)
  return true
}

/** Settings that models of both kinds have. */
function modelSection({ id, name, settings, note }: SwapModel, { globalTTL = 0 }: Values): Values {
  const { aliases, ttl = -1, filters } = settings
  const { setParams, setParamsByID } = toValues(filters)
  const names = new Set([id, ...toTexts(aliases), ...Object.keys(toValues(setParamsByID))])
  names.delete(name)
  for (const alias of [...names].filter(alias => !isAlias(alias))) {
    note('', `"${alias}" cannot be a name in corral. Requests use "${name}".`)
  }
  const seconds = Number(Number(ttl) < 0 ? globalTTL : ttl)
  return given({
    aliases: [...names].filter(isAlias),
    keep_alive: seconds === 0 ? -1 : `${seconds}s`,
    options: toValues(setParams)
  })
}

/** Adds a model of corral's own engine. Returns the reason if that is impossible. */
function addStored(
  model: SwapModel,
  words: readonly string[],
  top: Values,
  { folder, exists }: Surroundings,
  { models, files, pulls }: Conversion
): string | undefined {
  const { note, settings } = model
  if (!/^llama-server/.test(basename(words[0]!)) || /ik_llama/.test(words[0]!)) return ''
  const server = readServerCommand(words.slice(1), folder)
  if ('reason' in server) return server.reason
  const { model: source, managed } = server
  if ('pull' in source) {
    if (models[source.pull]) return 'another model is made from the same repository'
    // Its name in corral is that of its repository.
    model.name = source.pull
    pulls.push(source.pull)
  } else if (exists(source.path)) files.push({ path: source.path, model: model.name })
  else note('cmd', `${source.path} does not exist. Import the model later: corral import FILE ${model.name}`)
  const section = modelSection(model, top)
  const options = { ...server.settings.options, ...toValues(section.options) }
  models[model.name] = given({
    ...section,
    ...server.settings,
    options,
    max_concurrent: Number(settings.concurrencyLimit) || undefined,
    environment: readEnvironment(model)
  })
  if (server.settings.projector === '') models[model.name]!.projector = ''
  if (managed.length > 0) note('cmd', `corral sets ${[...new Set(managed)].join(', ')} itself.`)
  if (options.num_parallel === 1) {
    note('', 'It answers one request at a time, with the whole context. Raise options.num_parallel for more.')
  }
  return undefined
}

function convertProgram(
  model: SwapModel,
  words: readonly string[],
  command: string,
  top: Values,
  { folder, exists }: Surroundings
): Values | undefined {
  const { id, settings, note } = model
  const { proxy = 'http://localhost:{port}', checkEndpoint, cmdStop, useModelName, capabilities } = settings
  const url = String(proxy).replace('{port}', '1')
  const address = URL.canParse(url) ? new URL(url) : undefined
  if (!address || !LOCAL.test(address.hostname)) {
    note('proxy', 'It is not on this machine, so the model is left out. Add it under remote.models.')
    return undefined
  }
  const port = url === proxy ? Number(address.port || 80) : undefined
  if (port === undefined && !command.includes('{port}')) {
    note('cmd', 'Neither it nor "proxy" has a port, so the model is left out. Add the port to "proxy".')
    return undefined
  }
  const base = address.pathname.replace(/\/+$/, '')
  const { in: input, out, tools, reranker, context } = toValues(capabilities)
  const [inputs, outputs] = [toTexts(input), toTexts(out)]
  const isHearing = inputs.includes('audio') && !inputs.includes('text') && !outputs.includes('audio')
  const has = (pattern: RegExp) => words.some(word => pattern.test(word))
  const kinds: [string, unknown][] = [
    ['rerank', reranker || has(/^--rerank(ing)?$/)],
    ['embedding', has(/^--embeddings?$/)],
    ['transcribe', isHearing || has(/whisper-server$/)]
  ]
  const kind = kinds.find(([, isSo]) => isSo)?.[0]
  const at = words.findIndex(word => CONTEXT.test(word))
  const size = kind ? undefined : Number(context || CONTEXT.exec(words[at] ?? '')?.[1] || words[at + 1]) || undefined
  if (!kind && !size) note('cmd', `Set engines.${id}.context to the size of its context. Otherwise it is 4096.`)
  if (checkEndpoint === 'none') note('checkEndpoint', 'Set "ready" to a path that answers once the program is ready.')
  const stop = /\{pid\}/.test(String(cmdStop)) ? '' : withoutComments(cmdStop)
  if (cmdStop && !stop) note('cmdStop', 'It is left out: corral knows the process and sends SIGTERM.')
  const ready = checkEndpoint === 'none' ? undefined : checkEndpoint
  const isRelative = words.some(word => /^[^-/].*[./]/.test(word) && exists(join(folder, word)))
  const stopTimeout = Number(settings.unloadTimeout || top.unloadTimeout)
  const program = given({
    command,
    kind,
    ready: ready ? base + String(ready) : base && `${base}/health`,
    base: base && `${base}/v1`,
    port,
    model: String(useModelName || id),
    parallel: Number(settings.concurrencyLimit) || undefined,
    context: size,
    stop,
    environment: readEnvironment(model),
    directory: isRelative ? folder : undefined,
    start_timeout: top.healthCheckTimeout && `${Math.max(15, Number(top.healthCheckTimeout))}s`,
    stop_timeout: stopTimeout > 0 ? `${stopTimeout}s` : undefined
  })
  if (kind || capabilities === undefined) return program
  return { ...program, capabilities: [tools && 'tools', inputs.includes('image') && 'vision'].filter(Boolean) }
}

function readEnvironment({ settings, note }: SwapModel): Record<string, string> {
  const pairs = toTexts(settings.env).map(line => /^([^=]+)=(.*)$/s.exec(line) ?? line)
  for (const line of pairs) if (typeof line === 'string') note('env', `"${line}" has no "=", so it is left out.`)
  return Object.fromEntries(pairs.flatMap(pair => (typeof pair === 'string' ? [] : [[pair[1], pair[2]]])))
}

/** Sets `groups` so that the same models exclude each other. */
function excludeOthers(models: readonly SwapModel[], top: Values, { models: sections, notes }: Conversion): void {
  const { use, settings } = toValues(toValues(top.routing).router)
  if (top.matrix || use === 'matrix') return
  const { conflict, isPersistent } = groupConflicts(toValues(top.groups ?? toValues(settings).groups))
  const ids = models.map(({ id }) => id)
  const groups = groupsFor(ids, conflict)
  for (const { id, name } of models) {
    const section = sections[name]!
    const labels = groups.map((group, at) => (group.includes(id) ? `${OWNER}${at === 0 ? '' : `-${at + 1}`}` : ''))
    if (labels.some(Boolean)) section.groups = labels.filter(Boolean)
    if (isPersistent(id) && section.keep_alive === -1) section.pin = true
  }
  if (groups.length === 0) return
  notes.push(
    'Models of a group are never in memory together, as in llama-swap. Set engines.<name>.memory and remove "groups" to let memory decide.'
  )
}

/** Joins the lines of a command, without comments. */
function withoutComments(command: unknown = ''): string {
  const lines = String(command)
    .split('\n')
    .map(line => line.trim().replace(/\\$/, ''))
  return lines
    .filter(line => !line.startsWith('#'))
    .join(' ')
    .trim()
}

const isAlias = (name: string) => parses(() => parseRequestedName(name).variant === undefined)

function parses(check: () => boolean): boolean {
  try {
    return check()
  } catch {
    return false
  }
}

/** The model's id if it can be a name in corral, or else a similar name. */
function toModelName(id: string, taken: Set<string>): string {
  const bare = id.replace(/[^\w-]+/g, match => (match === '.' ? '.' : '-')).replace(/^[^a-z0-9]+|\.+$/gi, '')
  for (let at = 1, name = id; ; name = at === 1 ? `${OWNER}/${bare.slice(0, 90)}` : `${OWNER}/model-${at - 1}`, at++) {
    if (taken.has(name.toLowerCase()) || !parses(() => parseModelName(name).variant === undefined)) continue
    taken.add(name.toLowerCase())
    return name
  }
}
