import { isDeepStrictEqual } from 'node:util'
import { type Document, isAlias, isMap, isScalar, type Pair, parseDocument, YAMLMap } from 'yaml'
import { isObject } from '../system/json-object.ts'
import { readYaml } from './yaml-file.ts'

type Values = Record<string, unknown>

/** The settings of one model as lines of YAML, as people would type them. */
export const modelSettingsYaml = (model: string, settings: Values) => settingsYaml({ models: { [model]: settings } })

export function settingsYaml(values: Values): string {
  const document = parseDocument('')
  document.contents = document.createNode(values) as typeof document.contents
  compact(document.contents)
  return document.toString({ lineWidth: 0, flowCollectionPadding: false })
}

/**
 * Changes the settings of one model in a configuration file. Settings inside `options` are set one by one, others as a
 * whole. Everything outside `models` stays byte for byte, and comments and order inside it stay too.
 * @param text the file, which must be valid
 * @param model the name of the model's section, which may not exist yet
 * @param settings undefined values are removed
 * @param group another group of named sections instead of `models`
 * @returns the new text; undefined if the change would affect something else, such as a section that other models share
 * by an anchor
 */
export function withModelSettings(text: string, model: string, settings: Values, group = 'models'): string | undefined {
  const before = readYaml(text)
  if (before.mistakes.length > 0) return undefined
  const value: unknown = before.value ?? {}
  if (!isObject(value)) return undefined
  const sections = isObject(value[group]) ? value[group] : {}
  const section = isObject(sections[model]) ? sections[model] : {}
  const wanted = { ...value, [group]: { ...sections, [model]: merged(section, settings) } }

  const eol = text.includes('\r\n') ? '\r\n' : '\n'
  const changed = spliced(text, eol, [group, model], section, settings)
  if (changed === undefined) return undefined
  const after = readYaml(changed)
  return after.mistakes.length === 0 && isDeepStrictEqual(after.value, wanted) ? changed : undefined
}

function merged(section: Values, settings: Values): Values {
  const { options } = settings
  return defined({
    ...section,
    ...settings,
    ...(isObject(options) && {
      options: defined({ ...(isObject(section.options) ? section.options : {}), ...options })
    })
  })
}

const defined = (values: Values) =>
  Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined))

/**
 * Finds the name of the section for a variant's settings, as spelled in these values: the name with its label, or its
 * public name, which may not exist yet.
 * @param model its public name
 */
export function sectionName(values: unknown, model: string, label: string): string {
  const models = isObject(values) && isObject(values.models) ? values.models : {}
  const bare = model.split(':')[0]!
  for (const wanted of [`${bare}:${label}`, model]) {
    const name = Object.keys(models).find(each => each.toLowerCase() === wanted.toLowerCase())
    if (name !== undefined) return name
  }
  return model
}

function spliced(
  text: string,
  eol: string,
  [group, model]: [string, string],
  section: Values,
  settings: Values
): string | undefined {
  const document = parseDocument(text, { merge: true })
  const own = pairOf(document.contents, group)
  const isWritten = isMap(own?.value) && !own.value.flow
  if (own && !isWritten && !isEmpty(own.value)) {
    // A map in braces, or an alias: it is rewritten as lines.
    if (!isMap(own.value)) return undefined
    own.value.flow = false
  }
  if (!own || isEmpty(own.value)) {
    const lines = settingsYaml({ [group]: { [model]: settings } }).replaceAll('\n', eol)
    if (own) {
      const start = (own.key as { range?: number[] }).range![0]!
      const end = lineEnd(text, rangeOf(own)?.[1] ?? start)
      const comment = / *#.*/.exec(text.slice(start, end))?.[0] ?? ''
      return text.slice(0, start) + lines.replace(':', `:${comment}`) + text.slice(end)
    }
    if (document.contents !== null && (!isMap(document.contents) || document.contents.flow)) return undefined
    // A document end marker is allowed only at the end.
    if (/^(\.\.\.|---)/m.test(text.replace(/^---/, ''))) return undefined
    const gap = text.trim() === '' ? '' : text.endsWith('\n') ? eol : eol + eol
    return text + gap + lines
  }
  set(document, own.value as YAMLMap, model, section, settings)
  const indent = isWritten ? indentOf(text, own) : 0
  const written = document.toString({ lineWidth: 0, ...(indent > 0 && { indent }), flowCollectionPadding: false })
  const again = pairOf(parseDocument(written).contents, group)
  const [from, to] = [rangeOf(own), again && rangeOf(again)]
  if (!from || !to) return undefined
  const lines = written.slice(to[0], to[1]).replace(/\s*$/, '').replaceAll('\n', eol)
  const old = text.slice(from[0], from[1])
  return text.slice(0, from[0]) + lines + /\s*$/.exec(old)![0] + text.slice(from[1])
}

function set(document: Document, models: YAMLMap, model: string, section: Values, settings: Values): void {
  const { options, ...others } = settings
  let own = models.get(model, true) as unknown
  if (isAlias(own)) {
    // The section starts with a copy of the alias's values.
    const map = new YAMLMap(document.schema)
    map.add(document.createPair('<<', own))
    models.set(model, map)
    own = map
  } else if (!isMap(own)) {
    own = new YAMLMap(document.schema)
    models.set(model, own)
  }
  const map = own as YAMLMap
  const put = (into: YAMLMap, name: string, value: unknown) => {
    if (value === undefined) {
      into.delete(name)
      return
    }
    const node = document.createNode(value)
    compact(node)
    // A replaced value keeps its comments.
    const old = into.get(name, true) as { comment?: string | null; commentBefore?: string | null } | undefined
    if (old?.comment && isMap(into) && !isMap(old)) node.comment = old.comment
    into.set(document.createNode(name), node)
  }
  for (const [name, value] of Object.entries(others)) put(map, name, value)
  if (!isObject(options)) {
    if ('options' in settings) put(map, 'options', options)
    return
  }
  const present = map.get('options', true) as unknown
  if (isMap(present)) for (const [name, value] of Object.entries(options)) put(present, name, value)
  else put(map, 'options', defined({ ...(isObject(section.options) ? section.options : {}), ...options }))
}

function compact(node: unknown): void {
  const items = (node as { items?: unknown[] } | null)?.items
  if (!items) return
  if (!isMap(node)) (node as { flow?: boolean }).flow = true
  for (const item of items) compact((item as Pair).value)
}

function pairOf(map: unknown, key: string): Pair | undefined {
  if (!isMap(map)) return undefined
  return map.items.find(pair => isScalar(pair.key) && pair.key.value === key)
}

const isEmpty = (value: unknown) =>
  value === null || (isScalar(value) && value.value === null) || (isMap(value) && value.items.length === 0)

function rangeOf({ key, value }: Pair): [number, number] | undefined {
  const start = (key as { range?: number[] } | null)?.range?.[0]
  const end = (value as { range?: number[] } | null)?.range?.[2]
  return start === undefined || end === undefined ? undefined : [start, end]
}

function lineEnd(text: string, from: number): number {
  if (from > 0 && text[from - 1] === '\n') return from
  const end = text.indexOf('\n', from)
  return end < 0 ? text.length : end + 1
}

function indentOf(text: string, models: Pair): number {
  const first = isMap(models.value)
    ? (models.value.items[0]?.key as { range?: number[] } | undefined)?.range?.[0]
    : undefined
  if (first === undefined) return 0
  return first - (text.lastIndexOf('\n', first - 1) + 1)
}
