import { writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { API, type Checker, type Type } from 'typescript/unstable/sync'
import { pick } from './random.ts'

/** A type of the SDK, as far as JSON can express it. */
type Shape =
  | { kind: 'value'; value: unknown }
  | { kind: 'union'; of: Shape[] }
  | { kind: 'list'; of: Shape }
  | { kind: 'object'; fields: { name: string; shape: Shape; optional: boolean }[] }
  | { kind: 'string' | 'number' | 'any' }

/** Returns the shapes of types that a file of an SDK exports. @param folder for the compiler's configuration */
export function sdkShapes(
  folder: string,
  file: string,
  names: readonly string[],
  sdk: 'openai' | '@anthropic-ai/sdk' = '@anthropic-ai/sdk'
): Shape[] {
  const path = join(dirname(createRequire(import.meta.url).resolve(sdk)), file)
  const config = join(folder, 'tsconfig.json')
  const compilerOptions = { strict: true, skipLibCheck: true, types: [], lib: ['es2022', 'dom'], module: 'nodenext' }
  writeFileSync(config, JSON.stringify({ compilerOptions, files: [path] }))
  const api = new API({ cwd: folder })
  try {
    const project = api.updateSnapshot({ openProjects: [config] }).getProject(config)!
    const { checker, program } = project
    const exported = checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(path)!)!)
    const known = new Map<number, Shape>()
    return names.map(name => {
      const symbol = exported.find(each => each.name === name)
      if (!symbol) throw new Error(`${file} does not export ${name}`)
      return toShape(checker, checker.getDeclaredTypeOfSymbol(symbol), known)
    })
  } finally {
    api.close()
  }
}

function toShape(checker: Checker, type: Type, known: Map<number, Shape>): Shape {
  const found = known.get(type.id)
  if (found) return found
  const shape = {} as Shape
  known.set(type.id, shape)
  return Object.assign(shape, readType(checker, type, known))
}

function readType(checker: Checker, type: Type, known: Map<number, Shape>): Shape {
  if (type.isLiteralType()) return { kind: 'value', value: type.value }
  if (type.isUnionType()) {
    const of = type.getTypes().filter(each => checker.typeToString(each) !== 'undefined')
    return { kind: 'union', of: of.map(each => toShape(checker, each, known)) }
  }
  const text = checker.typeToString(type)
  if (text === 'null') return { kind: 'value', value: null }
  if (text === 'string' || text === 'number') return { kind: text }
  if (checker.isArrayType(type)) {
    return { kind: 'list', of: toShape(checker, checker.getTypeArguments(type as never)[0]!, known) }
  }
  const properties = type.isObjectType() ? checker.getPropertiesOfType(type) : []
  if (properties.length === 0) return text.startsWith('{') ? { kind: 'object', fields: [] } : { kind: 'any' }
  const fields = properties.map(symbol => {
    const inner = checker.getTypeOfSymbol(symbol)!
    const optional = checker.typeToString(inner).split(' | ').includes('undefined')
    return { name: symbol.name, shape: toShape(checker, inner, known), optional }
  })
  return { kind: 'object', fields }
}

const TEXTS = ['x', '', ' ', '{"a": ', 'toolu_1', 'Ünï 😀', '</s>', 'a\nb']
const VALUES = [{}, { a: 1 }, null, [], 'text', '{"broken": ', 0, true, { nested: [{ b: null }] }]
const PNG = 'iVBORw0KGgo='
/** Values of fields whose texts must mean something. */
const FIELDS: Record<string, unknown[]> = {
  data: [PNG],
  image_url: [`data:image/png;base64,${PNG}`],
  call_id: ['call_1', 'call_2'],
  name: ['look', 'ask'],
  parameters: [{ type: 'object', properties: { a: { type: 'string' } } }]
}

/** Returns a random value of a shape. */
export function randomValue(shape: Shape, random: () => number, field = ''): unknown {
  switch (shape.kind) {
    case 'value':
      return shape.value
    case 'union':
      return randomValue(pick(random, shape.of), random, field)
    case 'list':
      return Array.from({ length: Math.floor(random() * 3) }, () => randomValue(shape.of, random, field))
    case 'object': {
      const fields = shape.fields.filter(({ optional }) => !optional || random() < 0.4)
      return Object.fromEntries(fields.map(({ name, shape: inner }) => [name, randomValue(inner, random, name)]))
    }
    case 'string':
      return pick(random, FIELDS[field] ?? TEXTS)
    case 'number':
      return Math.floor(random() * 5)
    default:
      return pick(random, FIELDS[field] ?? VALUES)
  }
}
