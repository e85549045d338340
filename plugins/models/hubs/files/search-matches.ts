import type { HubMatch } from '../../../../core/contracts/hubs.ts'
import { isObject } from '../../../../core/system/json-object.ts'

/** Returns a hub's keyword, for example a licence or a task. Undefined for other text. */
export function toKeyword(value: unknown): string | undefined {
  return typeof value === 'string' && /^[\w.+:/-]{1,80}$/.test(value) ? value : undefined
}

const toCount = (value: unknown) =>
  Number.isSafeInteger(value) && (value as number) >= 0 ? (value as number) : undefined

/** Returns a time in ISO 8601, or undefined if it is not one. */
export function toTimestamp(value: unknown): string | undefined {
  if (typeof value !== 'string' || value.length > 40 || !/^\d{4}-\d\d-\d\d/.test(value)) return undefined
  const time = Date.parse(value)
  return Number.isNaN(time) ? undefined : new Date(time).toISOString()
}

/** Returns the tags of a record, which hubs write as strings or as objects with a name. */
export function toTags(value: unknown): string[] {
  if (!Array.isArray(value)) return []
  return value.flatMap(tag => toKeyword(isObject(tag) ? tag.name : tag) ?? [])
}

const FORMATS = ['gguf', 'safetensors'] as const

/** Converts a search record to a match. Undefined if it has no name. @param id field with the name */
export function toMatch(record: unknown, id: string): HubMatch | undefined {
  if (!isObject(record) || typeof record[id] !== 'string') return undefined
  const name = record[id]
  const tags = toTags(record.tags)
  const tagged = (kind: string) => tags.find(tag => tag.startsWith(`${kind}:`))?.slice(kind.length + 1)
  const given = Array.isArray(record.tasks) ? record.tasks : [record.pipeline_tag ?? tagged('task')]
  const hasFormat = (format: string) =>
    tags.some(tag => tag.toLowerCase().replace(/^(?:library|framework):/, '') === format) ||
    (format === 'gguf' && /gguf/i.test(name))
  return {
    id: name,
    downloads: toCount(record.downloads),
    likes: toCount(record.likes),
    updatedAt: toTimestamp(record.lastModified ?? record.last_modified ?? record.updated_at),
    license: toKeyword(record.license) ?? tagged('license'),
    tasks: given.flatMap(task => toKeyword(task) ?? []).slice(0, 10),
    gated: typeof record.gated === 'string' ? record.gated !== 'false' : record.gated === true,
    formats: FORMATS.filter(hasFormat)
  }
}
