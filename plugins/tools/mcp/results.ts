import type { HostTool, ResultFile } from '../../../core/contracts/tool-host.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { printable } from '../../../core/system/printable.ts'

/* Reads what servers of tools say. Nothing of it is trusted: everything has a maximum size. */

const MAX_TOOLS = 256
const MAX_DESCRIPTION_LENGTH = 4096
const MAX_SCHEMA_LENGTH = 65_536
const MAX_TOOL_NAME_LENGTH = 128
const MAX_RESOURCES = 256
const MAX_URI_LENGTH = 2048
const MAX_PROMPTS = 256
const MAX_ARGUMENTS = 32
const MAX_FILES = 8
/** Of all files of a result, in base64. */
const MAX_FILE_CHARACTERS = 3 * 2 ** 20
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/

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

/** Returns the images, sounds and other files of a result. Files beyond the limits are only named in its text. */
export function resultFiles({ content }: Record<string, unknown>): ResultFile[] {
  let left = MAX_FILE_CHARACTERS
  const all = (Array.isArray(content) ? content.filter(isObject) : []).flatMap(part => {
    const { blob = part.data, mimeType = part.mimeType, uri } = isObject(part.resource) ? part.resource : {}
    if (typeof blob !== 'string' || blob.length > left || !BASE64.test(blob)) return []
    left -= blob.length
    const type = mediaType(mimeType)
    return [{ name: fileName(uri, `${part.type}.${type.split('/')[1]}`), type, data: blob }]
  })
  return all.slice(0, MAX_FILES)
}

const mediaType = (given: unknown) =>
  /^[\w.+-]{1,60}\/[\w.+-]{1,60}/.exec(`${given ?? ''}`)?.[0].toLowerCase() ?? 'application/octet-stream'

/** Returns the last part of an address. */
const fileName = (uri: unknown, otherwise: string) =>
  printable(typeof uri === 'string' ? (uri.split(/[\\/]/).findLast(Boolean) ?? '') : '', 100) || otherwise

export interface Resource {
  uri: string
  name: string
  description: string
  type: string
}

/** Returns the resources of a server that users can attach. */
export function readResources(listed: readonly Record<string, unknown>[]): Resource[] {
  return listed
    .filter(({ uri }) => typeof uri === 'string' && uri.length <= MAX_URI_LENGTH)
    .slice(0, MAX_RESOURCES)
    .map(({ uri, name, title, description, mimeType }) => ({
      uri: `${uri}`,
      name: printable(`${title ?? name ?? uri}`, 200),
      description: `${description ?? ''}`.slice(0, MAX_DESCRIPTION_LENGTH),
      type: mediaType(mimeType)
    }))
}

/** Returns the contents of a resource as files. */
export const resourceFiles = (contents: readonly Record<string, unknown>[]): ResultFile[] =>
  contents.map(({ uri, mimeType, text, blob }) => ({
    name: fileName(uri, 'resource'),
    type: mediaType(mimeType ?? (typeof text === 'string' ? 'text/plain' : undefined)),
    data: typeof text === 'string' ? Buffer.from(text).toString('base64') : BASE64.test(`${blob}`) ? `${blob}` : ''
  }))

/** Bytes of files. */
export const sizeOf = (files: readonly ResultFile[]) => files.reduce((sum, { data }) => sum + (data.length * 3) / 4, 0)

export interface Prompt {
  name: string
  description: string
  arguments: { name: string; description: string; required: boolean }[]
}

interface ListedPrompt extends Pick<Prompt, 'name'> {
  title?: string | undefined
  description?: string | undefined
  arguments?: readonly { name: string; description?: string | undefined; required?: boolean | undefined }[] | undefined
}

/** Returns the prompts of a server. Those with an unusable name or too many arguments are left out. */
export function readPrompts(listed: readonly ListedPrompt[]): Prompt[] {
  const isName = ({ name }: { name: string }) => name.length <= MAX_TOOL_NAME_LENGTH && printable(name, 200) === name
  return listed
    .filter(
      each => isName(each) && (each.arguments ?? []).length <= MAX_ARGUMENTS && each.arguments?.every(isName) !== false
    )
    .slice(0, MAX_PROMPTS)
    .map(({ name, title, description = title ?? '', arguments: given = [] }) => ({
      name,
      description: description.slice(0, MAX_DESCRIPTION_LENGTH),
      arguments: given.map(({ name, description = '', required = false }) => ({
        name,
        description: description.slice(0, MAX_DESCRIPTION_LENGTH),
        required
      }))
    }))
}

export interface PromptMessage {
  role: 'user' | 'assistant'
  text: string
  files?: ResultFile[]
}

/** Returns the messages of a prompt. Images and other files are beside the text. */
export const promptMessages = (listed: readonly { role: PromptMessage['role']; content: unknown }[]): PromptMessage[] =>
  listed.map(({ role, content }) => {
    const files = resultFiles({ content: [content] })
    return files.length > 0 ? { role, text: '', files } : { role, text: isObject(content) ? partText(content) : '' }
  })

function partText({ type, text, resource, mimeType, data, uri, name }: Record<string, unknown>): string {
  if (typeof text === 'string') return text
  if (isObject(resource)) return typeof resource.text === 'string' ? resource.text : `[File ${resource.uri}]`
  if (type === 'resource_link') return `[${name ?? 'File'}: ${uri}]`
  const size = typeof data === 'string' ? `, ${Buffer.byteLength(data, 'base64')} bytes` : ''
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
