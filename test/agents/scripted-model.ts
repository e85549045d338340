import { existsSync, readFileSync } from 'node:fs'
import { createServer, type ServerResponse } from 'node:http'
import { join } from 'node:path'
import { json } from 'node:stream/consumers'
import type { Test } from 'tap'
import { listen } from '../support/listen.ts'

/** The work of every session: these files are in the agent's folder before and after it. */
export const FILES = { 'greeting.py': "def greet():\n    return 'Hello'\n", 'notes.txt': 'Be polite.\n' }
const OLD = "return 'Hello'"
const NEW = "return 'Good day'"
export const EDITED = FILES['greeting.py'].replace(OLD, NEW)
export const COPY = 'copy.py'
export const PROMPT = `Make the greeting in greeting.py polite, as notes.txt says. Then copy the file to ${COPY}.`
export const ANSWER = 'The greeting is polite now.'
const COPY_COMMAND = `cp greeting.py ${COPY}`

/** Rounds of a session: two parallel reads, an edit, a shell command and the answer. */
export const ROUNDS = 4
/** The number of tokens that the model names when its context is full. */
export const CONTEXT = 200_000

interface Tool {
  name: string
  parameters?: { properties?: Record<string, any>; required?: string[] }
}
interface Message {
  role: string
  content?: string | { text?: string }[] | null
  tool_calls?: unknown[]
}
interface Call {
  name: string
  arguments: Record<string, unknown>
}
export interface ModelRequest {
  model: string
  messages: Message[]
  tools?: { function: Tool }[]
}

/** What one session's model does, and what happened. */
export interface Script {
  /** The agent's folder. */
  folder: string
  /** Holds the answer of this round after its first words. */
  pauseAt?: number
  /**
   * The context is nearly full in the round before this one. From this one on it is full, until the agent has shortened
   * its history.
   */
  overflowAt?: number
  /** Characters of the first history that was too long. */
  tooLong?: number
  requests: ModelRequest[]
  /** Rounds that are held, and functions that continue them. */
  paused: (() => void)[]
  /** The number of answers that the other side ended. */
  aborted: number
}

export interface ScriptedModel {
  url: string
  /** Starts the script of a session. Its agent asks for this model name. */
  script(model: string, options: Pick<Script, 'folder' | 'pauseAt' | 'overflowAt'>): Script
}

/** Starts a server with the OpenAI chat format. Its model works like a good agent's model, with any set of tools. */
export async function startScriptedModel(t: Pick<Test, 'teardown'>): Promise<ScriptedModel> {
  const scripts = new Map<string, Script>()
  const server = createServer(async (request, response) => {
    if (request.method === 'GET') return void response.end('{"data":[]}')
    const body = (await json(request)) as ModelRequest
    const script = scripts.get(body.model)
    if (!script) return void response.writeHead(404).end()
    script.requests.push(body)
    await answer(script, body, response)
  })
  const port = await listen(t, server)
  return {
    url: `http://127.0.0.1:${port}/v1`,
    script(model, options) {
      const script: Script = { ...options, requests: [], paused: [], aborted: 0 }
      scripts.set(model, script)
      return script
    }
  }
}

async function answer(script: Script, body: ModelRequest, response: ServerResponse): Promise<void> {
  const { round, kind, isSummarized } = situation(body, script.folder)
  const length = JSON.stringify(body.messages).length
  const isShort = isSummarized || length < (script.tooLong ?? 0)
  const isFilling = kind === 'work' && script.overflowAt !== undefined && !isShort
  if (isFilling && round >= script.overflowAt!) {
    script.tooLong ??= length
    const message = `This model's maximum context length is ${CONTEXT} tokens. However, your messages resulted in ${CONTEXT + 1000} tokens. Please reduce the length of the messages.`
    const error = { message, type: 'invalid_request_error', param: 'messages', code: 'context_length_exceeded' }
    return void response.writeHead(400, { 'content-type': 'application/json' }).end(JSON.stringify({ error }))
  }
  response.on('close', () => {
    if (!response.writableFinished) script.aborted++
  })
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  const send = (event: object) => response.write(`data: ${JSON.stringify(event)}\n\n`)
  const delta = (delta: object, finish_reason: string | null = null) =>
    send({ choices: [{ index: 0, delta, finish_reason }] })
  if (kind === 'work') delta({ reasoning_content: 'Let me ' })
  if (kind === 'work' && round === script.pauseAt) {
    delete script.pauseAt
    await new Promise<void>(resolve => script.paused.push(resolve))
  }
  if (kind === 'work') delta({ reasoning_content: 'think.' })
  const { text, calls } = kind === 'work' ? work(body, round, script.folder) : { text: ASIDES[kind], calls: [] }
  for (const piece of kind === 'work' ? (text.match(/[\s\S]{1,40}/g) ?? []) : [text]) delta({ content: piece })
  for (const [index, { name, arguments: values }] of calls.entries()) {
    delta({
      tool_calls: [{ index, id: `call_${round}_${index}`, type: 'function', function: { name, arguments: '' } }]
    })
    for (const piece of JSON.stringify(values).match(/[\s\S]{1,30}/g)!)
      delta({ tool_calls: [{ index, function: { arguments: piece } }] })
  }
  delta({}, calls.length > 0 ? 'tool_calls' : 'stop')
  const isNearlyFull = isFilling && round === script.overflowAt! - 1
  const prompt_tokens = isNearlyFull ? Math.ceil(CONTEXT * 0.97) : Math.ceil(length / 4)
  send({ choices: [], usage: { prompt_tokens, completion_tokens: 20, prompt_tokens_details: { cached_tokens: 0 } } })
  response.end('data: [DONE]\n\n')
}

const textOf = ({ content }: Message) =>
  typeof content === 'string' ? content : (content ?? []).map(({ text }) => text ?? '').join('\n')

/** Agents put this text into the histories that they shorten. */
export const SUMMARY = 'Both files were read, and the rest of the work is under way.'
/** How agents ask for a summary while they still offer tools. */
const ASKS_SUMMARY = /^CRITICAL: Respond with TEXT ONLY|CONTEXT CHECKPOINT COMPACTION|that summarizes a conversation/

/**
 * Where a session stands, only from its files and the request: a request that is sent again gets the same answer, and an
 * agent may shorten its history.
 */
function situation({ messages, tools }: ModelRequest, folder: string) {
  const read = (name: string) => readFileSync(join(folder, name), 'utf8')
  const texts = messages.map(textOf)
  const hasRead = messages.some(({ role }, at) => role === 'tool' && texts[at]!.includes(FILES['notes.txt'].trim()))
  const hasEdited = read('greeting.py') === EDITED
  const round = existsSync(join(folder, COPY)) ? 3 : hasEdited ? 2 : hasRead ? 1 : 0
  const last = texts[messages.findLastIndex(({ role }) => role === 'user')] ?? ''
  const isWork = tools?.length ? !ASKS_SUMMARY.test(last) : isEditing(messages)
  const kind = isWork ? 'work' : tools?.length || /summar|snapshot/i.test(last) ? 'summary' : 'title'
  return { round, kind, isSummarized: texts.some(text => text.includes(SUMMARY)) } as const
}

/** aider offers no tools. Its model writes blocks with the old and the new text. */
const isEditing = ([system]: Message[]) => textOf(system!).includes('<<<<<<< SEARCH')

const ASIDES = {
  title: 'Polite greeting',
  summary: `<analysis>All clear.</analysis>\n<summary>\n<state_snapshot>\n${PROMPT} ${SUMMARY}\n</state_snapshot>\n</summary>`
}

function work({ tools }: ModelRequest, round: number, folder: string): { text: string; calls: Call[] } {
  if (!tools?.length) {
    const blocks = `greeting.py\n\`\`\`python\n<<<<<<< SEARCH\n    ${OLD}\n=======\n    ${NEW}\n>>>>>>> REPLACE\n\`\`\`\n`
    return { text: round === 0 || round === 1 ? blocks : ANSWER, calls: [] }
  }
  if (round >= ROUNDS - 1) return finish(tools)
  const steps = [() => readBoth(tools, folder), () => [edit(tools, folder)], () => [shell(tools, COPY_COMMAND)]]
  return { text: round === 0 ? 'I read both files.' : '', calls: steps[round]!() }
}

function finish(tools: NonNullable<ModelRequest['tools']>) {
  const [only, ...others] = tools
  // mini-swe-agent ends when a command prints this.
  const isMini = others.length === 0 && only!.function.name === 'bash'
  if (isMini) return { text: ANSWER, calls: [shell(tools, 'echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT')] }
  return { text: ANSWER, calls: [] }
}

type Tools = NonNullable<ModelRequest['tools']>
const find = (tools: Tools, names: RegExp) => tools.find(({ function: { name } }) => names.test(name))?.function

function readBoth(tools: Tools, folder: string): Call[] {
  const tool = find(tools, /^(read|read_?file|view|read_files)$/i)
  const files = Object.keys(FILES)
  if (!tool) return files.map(file => shell(tools, `cat ${file}`))
  return files.map(file => call(tool, [[/path|file/i, join(folder, file)]]))
}

function edit(tools: Tools, folder: string): Call {
  const patch = find(tools, /^apply_patch$/)
  if (patch) {
    const text = `*** Begin Patch\n*** Update File: greeting.py\n@@\n def greet():\n-    ${OLD}\n+    ${NEW}\n*** End Patch\n`
    return call(patch, [[/input|patch/i, text]])
  }
  const tool = find(tools, /^(edit|edit_?file|replace|search_replace|replace_in_file|editor)$/i)
  if (!tool) return shell(tools, `sed -i "s/Hello/Good day/" greeting.py`)
  return call(tool, [
    [/^old|search/i, OLD],
    [/^new|^replace/i, NEW],
    [/path|file/i, join(folder, 'greeting.py')]
  ])
}

function shell(tools: Tools, command: string): Call {
  const tool = find(
    tools,
    /^(bash|terminal|shell|shell_command|exec_command|run_shell_command|execute_command|run_commands)$/i
  )
  if (!tool) throw new Error(`no shell among ${tools.map(({ function: { name } }) => name)}`)
  return call(tool, [[/^(cmd|commands?)$/i, command]])
}

/** A call with the given values in the parameters whose names match, and something in all other required ones. */
function call(tool: Tool, values: [RegExp, string][]): Call {
  const fill = ({ properties = {}, required = [] }: NonNullable<Tool['parameters']>): Record<string, unknown> =>
    Object.fromEntries(
      Object.entries(properties).flatMap(([name, schema]) => {
        const known = values.find(([pattern]) => pattern.test(name))
        if (known && schema.type !== 'boolean' && schema.type !== 'object') return [[name, shaped(schema, known[1])]]
        if (schema.type === 'array' && schema.items?.properties) return [[name, [fill(schema.items)]]]
        return required.includes(name) ? [[name, something(schema)]] : []
      })
    )
  return { name: tool.name, arguments: fill(tool.parameters ?? {}) }
}

function shaped(schema: any, value: string): unknown {
  if (schema.type !== 'array') return value
  if (schema.items?.properties) return [{ [Object.keys(schema.items.properties)[0]!]: value }]
  return [value]
}

function something(schema: any): unknown {
  if (schema.default !== undefined) return schema.default
  if (schema.enum) return schema.enum[0]
  return { boolean: false, number: 1, integer: 1, array: [], object: {} }[schema.type as 'array'] ?? 'the next step'
}
