import { DoctorReportSchema } from '../command-line/doctor-schema.ts'

/** The supported parts of JSON Schema. */
interface Schema {
  type?: string
  title?: string
  description?: string
  enum?: unknown[]
  anyOf?: Schema[]
  items?: Schema
  properties?: Record<string, Schema>
  required?: string[]
}

interface Row {
  field: string
  type: string
  meaning: string
}

const INTRODUCTION = `# The report of corral doctor

\`corral doctor --json\` prints one JSON object with the fields below. [doctor.schema.json](doctor.schema.json) is its
JSON schema. Later versions may add fields, but existing fields keep their names and meanings. Sizes are in
bytes. Unknown values are absent, never 0 or an empty text. \`GET /api/runtimes\` returns \`state\`, \`hardware\`, \`ranking\`,
\`release\`, \`chosen\`, \`attempts\` and \`installed\` in the same shape.

- \`--no-build\` ranks without searching for a build: \`chosen\` is absent and \`state\` is \`idle\`.
- \`--sysroot <folder>\` reads the system files in that folder instead of this machine's, with the programs on the PATH.
  The command then makes the report itself, even if a server is running.
- Exit codes: 0 no problems, 1 \`problems\` is not empty, 2 the configuration has errors (\`config.problems\`).

\`ranking\` lists the kinds of builds for this machine, best first, based on the hardware and on the file names of a release:
the live list, or the list bundled with corral if the release server cannot be reached (\`release.list\`). \`chosen\` is the
verified build: it started, listed its devices and, if corral installed it, answered with the demo model.

| field | type | meaning |
|---|---|---|
`

/** Generates the documents about the report of \`corral doctor\` from its schema. */
export function renderDoctorDocs(): { 'doctor.md': string; 'doctor.schema.json': string } {
  const schema: Schema = JSON.parse(JSON.stringify(DoctorReportSchema))
  const lines = toRows(schema, '', new Map()).map(
    ({ field, type, meaning }) => `| \`${field}\` | ${type} | ${meaning} |`
  )
  const described = { $schema: 'https://json-schema.org/draft/2020-12/schema', ...schema }
  return {
    'doctor.md': `${INTRODUCTION}${lines.join('\n')}\n`,
    'doctor.schema.json': `${JSON.stringify(described, undefined, 2)}\n`
  }
}

/** A repeated object with at least this many fields is described once and referenced. */
const WORTH_NAMING = 4

function toRows(schema: Schema, prefix: string, documented: Map<string, string>): Row[] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, property]) => {
    const optional = !schema.required?.includes(name)
    const field = `${prefix}${name}${property.type === 'array' ? '[]' : ''}`
    const type = `${formatType(property)}${optional ? ', may be absent' : ''}`
    const shape = [property, property.items, ...(property.anyOf ?? [])].find(candidate => candidate?.properties)
    if (!shape) return [{ field, type, meaning: formatMeaning(property) }]
    const text = JSON.stringify(shape)
    const before = documented.get(text)
    if (before !== undefined) return [{ field, type, meaning: `As \`${before}\`` }]
    if (Object.keys(shape.properties!).length >= WORTH_NAMING) documented.set(text, field)
    return [{ field, type, meaning: formatMeaning(property) }, ...toRows(shape, `${field}.`, documented)]
  })
}

function formatType({ type, items, anyOf, enum: values }: Schema): string {
  if (anyOf) return anyOf.map(formatType).join(' or ')
  if (values) return 'text'
  if (type === 'array') return `list of ${items?.properties ? 'objects' : `${formatType(items ?? {})}s`}`
  return type === 'string' ? 'text' : type === 'integer' ? 'whole number' : (type ?? 'any')
}

function formatMeaning({ description, enum: values, items }: Schema): string {
  const choice = values ?? items?.enum
  const words = [
    description ?? items?.description,
    choice && `One of: ${choice.map(value => `\`${value}\``).join(', ')}.`
  ]
  const text = words.filter(Boolean).join('. ').replaceAll('..', '.')
  return text.replaceAll('|', '\\|')
}
