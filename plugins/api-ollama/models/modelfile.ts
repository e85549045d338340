import { CorralError } from '../../../core/errors.ts'
import type { CreateRequest } from './create-request.ts'

const LIST_PARAMETERS = new Set(['stop'])

/**
 * Reads the text of an Ollama Modelfile, as older clients of Ollama send it
 * (https://docs.ollama.com/modelfile). A FROM or ADAPTER of the form `@sha256:…` is a file that was sent.
 * @throws CorralError `invalid_request` with the line at fault
 */
export function parseModelfile(text: string): CreateRequest {
  const request: CreateRequest & { parameters: Record<string, unknown> } = { parameters: {} }
  const licenses: string[] = []
  for (const { keyword, value, line } of commandsOf(text)) {
    const digest = /^@?(sha256[:-][0-9a-f]{64})$/i.exec(value)?.[1]
    if (keyword === 'from' && digest) {
      request.files = { ...request.files, [`model-${Object.keys(request.files ?? {}).length + 1}`]: digest }
    } else if (keyword === 'from') request.from = value
    else if (keyword === 'adapter') request.adapters = { ...request.adapters, [value]: digest ?? value }
    else if (keyword === 'template') request.template = value
    else if (keyword === 'system') request.system = value
    else if (keyword === 'license') licenses.push(value)
    else if (keyword === 'message') request.messages = [...(request.messages ?? []), messageOf(value, line)]
    else if (keyword === 'parameter') addParameter(request.parameters, value, line)
    // What Ollama's own code puts prompts together and reads answers by; llama.cpp has the template for that.
    else if (!['renderer', 'parser', 'requires'].includes(keyword)) {
      throw mistake(line, `${keyword.toUpperCase()} is no instruction of Modelfiles`)
    }
  }
  if (licenses.length > 0) request.license = licenses
  return request
}

interface Command {
  keyword: string
  value: string
  /** From 1. */
  line: number
}

function commandsOf(text: string): Command[] {
  const commands: Command[] = []
  const lines = text.replaceAll('\r\n', '\n').split('\n')
  for (let at = 0; at < lines.length; at++) {
    const line = at + 1
    const [, keyword, rest = ''] = /^\s*([A-Za-z]+)(?:\s+(.*))?$/.exec(lines[at]!) ?? []
    if (!keyword) {
      if (/^\s*(#.*)?$/.test(lines[at]!)) continue
      throw mistake(line, 'it begins with no instruction')
    }
    // The quotes of a MESSAGE come after its role, those of a PARAMETER after its name.
    const [, before = '', opened] = /^(.*?)"""(.*)$/s.exec(rest) ?? []
    let value = rest.trim()
    if (opened !== undefined) {
      let block = opened
      while (!block.includes('"""')) {
        if (++at >= lines.length) throw mistake(line, 'its """ does not end')
        block += `\n${lines[at]}`
      }
      value = before + block.slice(0, block.indexOf('"""'))
    }
    commands.push({ keyword: keyword.toLowerCase(), value: opened === undefined ? unquoted(value) : value, line })
  }
  return commands
}

function unquoted(text: string): string {
  return /^"[\s\S]*"$/.test(text) && text.length > 1 ? text.slice(1, -1) : text
}

function messageOf(value: string, line: number): { role: 'system' | 'user' | 'assistant'; content: string } {
  const [, role, content] = /^(system|user|assistant):?\s+([\s\S]*)$/.exec(value) ?? []
  if (!role || content === undefined) throw mistake(line, 'a MESSAGE is system, user or assistant and a text')
  return { role: role as 'user', content: unquoted(content) }
}

function addParameter(parameters: Record<string, unknown>, value: string, line: number): void {
  const [, name, text] = /^(\w+)\s+([\s\S]*)$/.exec(value) ?? []
  if (!name || text === undefined) throw mistake(line, 'a PARAMETER is a name and a value')
  const plain = unquoted(text)
  if (LIST_PARAMETERS.has(name)) parameters[name] = [...((parameters[name] as string[]) ?? []), plain]
  else if (plain !== '' && Number.isFinite(Number(plain))) parameters[name] = Number(plain)
  else if (plain === 'true' || plain === 'false') parameters[name] = plain === 'true'
  else parameters[name] = plain
}

function mistake(line: number, what: string): CorralError {
  return new CorralError('invalid_request', `The Modelfile cannot be read: line ${line}: ${what}.`, {
    param: 'modelfile'
  })
}
