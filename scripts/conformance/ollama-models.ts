import { createHash } from 'node:crypto'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { randomEncoder, randomProjector, writeRandomDecoderEmbedding } from '../random-models.ts'
import { recitingModel } from '../reciting-model.ts'

/*
 * Ollama's tests name models of its library and search their answers for words, for example "scatter" when they ask
 * about the sky. These stand-in models have the same names and always say all of those words, so the results depend
 * only on the server.
 */

/**
 * The text that chat models say before a tool call. Each word is one token and unique. None of them is the last token
 * of a prompt, because the model would continue from there.
 */
const TEXT =
  'Rayleigh said: light with a short wavelength is what our atmosphere does scatter most, for its nitrogen and oxygen ' +
  'molecules interact. Once upon that time there lived water, droplet by droplet; mist would refract or reflect ' +
  'sunlight into colors. In July fourth came independence, their declaration. Soil holds organic matter; earth, air ' +
  'have carbon dioxide too. Europe knew Russia, Austria, England, France. Shakespeare sang of love. def fibonacci(n): ' +
  'while select from yes safe plugin. So text here says the ollamas! 散射 频率 😀 😊\n'
const CALL = [
  '<tool_call>',
  '\n{"name":',
  ' "get_weather",',
  ' "arguments":',
  ' {"location":',
  ' "San',
  ' Francisco"}}\n',
  '</tool_call>'
]
const RECITED = [...TEXT.split(/(?= )/), ...CALL]

/** Words used in embedding tests. Words on the same line have similar meanings. */
const WORDS = [
  ...['cat kitten feline', 'king queen', 'paris london', 'sofa couch', 'programming coding', 'love joy', 'quick fast'],
  ...['fascinating amazing', 'jumps leaps', 'lazy sleepy', 'the a', 'dog', 'baron', 'vancouver', 'is', 'sleeping'],
  ...['on', 'quantum', 'physics', 'complex', 'i', 'in', 'python', 'brings', 'me', 'pizza', 'delicious', 'machine'],
  ...['learning', 'artificial', 'intelligence', 'need', 'to', 'buy', 'groceries', 'brown', 'fox', 'over', 'weather'],
  ...['warm', 'and', 'sunny', 'today', 'why', 'sky', 'blue', 'grass', 'green', 'hi', 'there', 'my', 'short', 'long'],
  ...['medium', 'text', 'test', 'word', 'very', 'input', 'another']
].map(line => line.split(' ').filter(word => word.length > 1))

/** Embedding width that Ollama's tests expect from all-minilm. */
const MINILM_WIDTH = 384

/**
 * A chat template with tools in Go's template language, like those of Ollama's models. The file contains llama.cpp's
 * template.
 */
const GO_TEMPLATE = `{{- if or .System .Tools }}<|im_start|>system
{{ .System }}
{{- if .Tools }}Tools:
{{- range .Tools }}
{{ . }}
{{- end }}
{{- end }}<|im_end|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ if .Content }}{{ .Content }}
{{- else if .ToolCalls }}<tool_call>
{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
{{ end }}</tool_call>
{{- end }}<|im_end|>
{{ else if eq .Role "tool" }}<|im_start|>user
<tool_response>
{{ .Content }}
</tool_response><|im_end|>
{{ end }}
{{- end }}<|im_start|>assistant
`

export interface ModelNames {
  chat: string[]
  vision: string[]
  embedding: string[]
}

export function modelNames(module: string): ModelNames {
  const tests = join(module, 'integration')
  const text = readdirSync(tests)
    .filter(name => name.endsWith('.go'))
    .map(name => readFileSync(join(tests, name), 'utf8'))
    .join('\n')
    .replace(/^\s*\/\/.*$/gm, '')
  const list = (name: string) => {
    const [, body] = new RegExp(`\\b${name}\\s*:?=\\s*\\[\\]string\\{([^}]*)\\}`).exec(text) ?? []
    if (body === undefined)
      throw new Error(`Ollama's tests no longer have a list ${name}. Update scripts/conformance/ollama-models.ts.`)
    return [...body.matchAll(/^\s*"([^"]+)"/gm)].map(match => match[1]!)
  }
  const named = [...text.matchAll(/\b(?:modelName :?=|Model:|model:|imageGenModel:|visionModel:)\s+"([^"]+)"/g)].map(
    match => match[1]!
  )
  const embedding = new Set(list('libraryEmbedModels'))
  const vision = new Set([...named.filter(name => /vl\b|vision|gemma3|ministral/.test(name)), 'llava'])
  const chat = [
    ...['ollamaEngineChatModels', 'llamaRunnerChatModels', 'libraryChatModels', 'libraryToolsModels'].flatMap(list),
    ...['smallModels', 'mediumModels', 'sourceModels'].flatMap(list),
    ...[...named, 'llama3.2:1b', 'llama3.2', 'gemma2']
  ].map(name => name.replace(/:latest$/, ''))
  // Image models are a different kind, which neither server has.
  const isOther = (name: string) => vision.has(name) || embedding.has(name) || name.includes('z-image')
  return {
    chat: [...new Set(chat)].filter(name => !isOther(name)),
    vision: [...vision],
    embedding: [...embedding]
  }
}

interface Server {
  url: string
  /** Whether its chat templates are in Go's template language. */
  goTemplates: boolean
}

async function post(url: string, path: string, body: unknown): Promise<void> {
  const response = await fetch(url + path, { method: 'POST', body: JSON.stringify(body) })
  const text = await response.text()
  if (!response.ok) throw new Error(`${path} gave ${response.status} ${text.slice(0, 500)}`)
}

/** The file of a chat model, as published. */
export async function chatModel(): Promise<Buffer> {
  return await recitingModel('Reciting', RECITED)
}

/** Creates the models that Ollama's tests name, through the API of `ollama create` and `ollama cp`. */
export async function makeModels({ url, goTemplates }: Server, names: ModelNames): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'corral-conformance-'))
  try {
    const decoder = join(folder, 'decoder.gguf')
    await writeRandomDecoderEmbedding(decoder)
    const chat = await chatModel()
    const encoder = randomEncoder('embedding', 1, { width: MINILM_WIDTH, words: WORDS })
    const common = { stream: false, license: 'MIT', ...(goTemplates && { template: GO_TEMPLATE }) }
    // Several threads that wait for each other would be slow on a busy machine. corral's engine has one thread here
    // too.
    const parameters = { stop: ['<|im_end|>'], num_thread: 1 }
    const chatting = { ...common, parameters }
    const embedding = { ...common, parameters: { num_thread: 1 } }
    const isDecoder = (name: string) => name.startsWith('qwen3')
    const kinds: [names: string[], files: Record<string, Buffer>, more: object][] = [
      [names.chat, { 'chat.gguf': chat }, chatting],
      [names.vision, { 'chat.gguf': chat, 'mmproj.gguf': randomProjector('vision') }, chatting],
      [names.embedding.filter(name => !isDecoder(name)), { 'encoder.gguf': encoder }, embedding],
      [names.embedding.filter(isDecoder), { 'decoder.gguf': readFileSync(decoder) }, embedding]
    ]
    for (const [[first, ...others], contents, more] of kinds) {
      const files: Record<string, string> = {}
      for (const [name, bytes] of Object.entries(contents)) {
        files[name] = `sha256:${createHash('sha256').update(bytes).digest('hex')}`
        await fetch(`${url}/api/blobs/${files[name]}`, { method: 'POST', body: new Uint8Array(bytes) })
      }
      await post(url, '/api/create', { model: first, files, ...more })
      for (const destination of others) await post(url, '/api/copy', { source: first, destination })
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
