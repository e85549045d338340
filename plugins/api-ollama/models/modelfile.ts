import { CorralError } from '../../../core/errors.ts'
import type { CreateRequest } from './create-request.ts'

const KEYWORDS = new Set([
  ...['from', 'adapter', 'template', 'system', 'license', 'message', 'parameter'],
  // By these Ollama's own code puts prompts together and reads answers: llama.cpp has the chat template for that.
  ...['renderer', 'parser', 'requires']
])

/**
 * Reads the text of an Ollama Modelfile, as older clients of Ollama send it
 * (https://docs.ollama.com/modelfile). A FROM or ADAPTER of the form `@sha256:…` is a file that was sent.
 * @throws CorralError `invalid_request` with the line at fault
 */
export function parseModelfile(text: string): CreateRequest {
  const request: CreateRequest & { parameters: Record<string, unknown> } = { parameters: {} }
  const licenses: string[] = []
  for (const command of commandsOf(text)) {
    const { keyword, value } = command
    const digest = /^@?(sha256[:-][0-9a-f]{64})$/i.exec(value)?.[1]
    if (keyword === 'from' && digest) {
      request.files = { ...request.files, [`model-${Object.keys(request.files ?? {}).length + 1}`]: digest }
    } else if (keyword === 'from') request.from = value
    else if (keyword === 'adapter') request.adapters = { ...request.adapters, [value]: digest ?? value }
    else if (keyword === 'template') request.template = value
    else if (keyword === 'system') request.system = value
    else if (keyword === 'license') licenses.push(value)
    else if (keyword === 'message') request.messages = [...(request.messages ?? []), messageOf(command)]
    else if (keyword === 'parameter') addParameter(request.parameters, command)
  }
  if (licenses.length > 0) request.license = licenses
  return request
}

interface Command {
  keyword: string
  /** What stands before the value: the role of a MESSAGE, the name of a PARAMETER. */
  word: string
  value: string
  /** From 1. */
  line: number
}

function commandsOf(text: string): Command[] {
  const commands: Command[] = []
  const lines = text.replaceAll('\r\n', '\n').split('\n')
  for (let at = 0; at < lines.length; at++) {
    const line = at + 1
    if (/^\s*(#.*)?$/.test(lines[at]!)) continue
    const [, command = '', rest = ''] = /^\s*([A-Za-z]+)(?:\s+(.*))?$/.exec(lines[at]!) ?? []
    const keyword = command.toLowerCase()
    if (!KEYWORDS.has(keyword)) throw mistake(line, 'it begins with no instruction of Modelfiles')
    const [, word = '', begin = ''] =
      (keyword === 'message' || keyword === 'parameter' ? /^(\w+)\s+(.*)$/ : /^()(.*)$/).exec(rest) ?? []
    const quotes = /^("""|")/.exec(begin)?.[1]
    let value = begin.trim()
    if (quotes) {
      // It ends where a line does.
      while (value.length < 2 * quotes.length || !value.trimEnd().endsWith(quotes)) {
        if (++at >= lines.length) throw mistake(line, `its ${quotes} does not end`)
        value += `\n${lines[at]}`
      }
      value = value.trimEnd().slice(quotes.length, -quotes.length)
    }
    commands.push({ keyword, word, value, line })
  }
  return commands
}

function messageOf({ word, value, line }: Command): NonNullable<CreateRequest['messages']>[number] {
  if (word === 'system' || word === 'user' || word === 'assistant') return { role: word, content: value }
  throw mistake(line, 'a MESSAGE is system, user or assistant and a text')
}

function addParameter(parameters: Record<string, unknown>, { word: name, value, line }: Command): void {
  if (name === '') throw mistake(line, 'a PARAMETER is a name and a value')
  if (name === 'stop') parameters[name] = [...((parameters[name] as string[]) ?? []), value]
  else if (value.trim() !== '' && Number.isFinite(Number(value))) parameters[name] = Number(value)
  else if (value === 'true' || value === 'false') parameters[name] = value === 'true'
  else parameters[name] = value
}

function mistake(line: number, what: string): CorralError {
  return new CorralError('invalid_request', `The Modelfile cannot be read: line ${line}: ${what}.`, {
    param: 'modelfile'
  })
}
