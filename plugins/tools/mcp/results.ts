import type { HostTool } from '../../../core/contracts/tool-host.ts'
import { isObject } from '../../../core/system/json-object.ts'

/* Reads what servers of tools say. Nothing of it is trusted: everything has a maximum size. */

const MAX_TOOLS = 256
const MAX_DESCRIPTION_LENGTH = 4096
const MAX_SCHEMA_LENGTH = 65_536
const MAX_TOOL_NAME_LENGTH = 128

interface ListedTool {
  name: string
  description?: string | undefined
  inputSchema: object
  annotations?: { readOnlyHint?: boolean | undefined } | undefined
}

/** Returns the usable tools of a server. Tools without a usable name or with a huge schema are left out. */
export function readTools(server: string, listed: readonly ListedTool[]): Omit<HostTool, 'asks'>[] {
  return listed
    .filter(({ name, inputSchema }) => {
      const hasName = name.length <= MAX_TOOL_NAME_LENGTH && /^[\w./-]+$/.test(name)
      return hasName && JSON.stringify(inputSchema).length <= MAX_SCHEMA_LENGTH
    })
    .slice(0, MAX_TOOLS)
    .map(({ name, description = '', inputSchema, annotations }) => ({
      server,
      name,
      description: description.slice(0, MAX_DESCRIPTION_LENGTH),
      parameters: inputSchema as Record<string, unknown>,
      readOnly: annotations?.readOnlyHint === true
    }))
}

/** Returns the text of a result for the model, of at most `most` bytes. Pictures and sounds are only named. */
export function resultText({ content, structuredContent }: Record<string, unknown>, most: number): string {
  const parts = Array.isArray(content) ? content.filter(isObject) : []
  const texts = parts.map(partText)
  if (texts.length === 0 && structuredContent !== undefined) texts.push(JSON.stringify(structuredContent))
  return truncated(texts.join('\n'), most)
}

function partText({ type, text, resource, mimeType, data, uri, name }: Record<string, unknown>): string {
  if (typeof text === 'string') return text
  if (isObject(resource)) return typeof resource.text === 'string' ? resource.text : `[File ${resource.uri}]`
  if (type === 'resource_link') return `[${name ?? 'File'}: ${uri}]`
  const size = typeof data === 'string' ? `, ${Math.floor((data.length * 3) / 4)} bytes` : ''
  return `[${type}${mimeType ? ` ${mimeType}` : ''}${size}: not shown]`
}

function truncated(text: string, most: number): string {
  const bytes = Buffer.from(text)
  if (bytes.length <= most) return text
  const kept = bytes
    .subarray(0, most)
    .toString()
    .replace(/\ufffd+$/, '')
  return `${kept}\n[Truncated: the result has ${bytes.length} bytes, of which ${most} are shown.]`
}

/** Replaces `${NAME}` by variables of the environment. @throws Error that names a missing one */
export function withVariables(text: string, environment: NodeJS.ProcessEnv): string {
  return text.replace(/\$\{(\w+)\}/g, (_, name: string) => {
    const value = environment[name]
    if (value === undefined) throw new Error(`the environment variable ${name} is not set`)
    return value
  })
}
