import { type Command, InvalidArgumentError, Option } from 'commander'
import { messageOf } from '../../core/errors.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { printAnswer } from '../answer-printer.ts'
import type { CommandContext } from '../context.ts'
import { type ChatSettings, type Conversation, createConversation, formatCounters } from '../conversation.ts'
import { CommandFailure, EXIT } from '../failure.ts'
import { interruption } from '../interruption.ts'
import { modelArgument } from '../model-argument.ts'
import { showProgress } from '../progress-line.ts'
import { withServer } from '../server-connection.ts'

interface RunOptions {
  system?: string
  temperature?: number
  topP?: number
  topK?: number
  seed?: number
  maxTokens?: number
  numCtx?: number
  format?: unknown
  think?: boolean
  keepAlive?: string
  verbose?: boolean
}

export function defineRun(program: Command, context: CommandContext): void {
  program
    .command('run')
    .description('chat with a model, or get one answer')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .argument('[prompt...]', 'one question; without it, and at a terminal, a chat')
    .option('--system <text>', 'instructions for the model')
    .addOption(number('--temperature <number>', 'randomness; 0 always gives the likeliest answer'))
    .addOption(number('--top-p <number>', 'keep the likeliest tokens that make up this share'))
    .addOption(whole('--top-k <number>', 'keep this many of the likeliest tokens'))
    .addOption(whole('--seed <number>', 'repeats a random answer; -1 is a new one each time'))
    .addOption(whole('--max-tokens <number>', 'longest answer; -1 is as long as the context allows'))
    .addOption(whole('--num-ctx <number>', 'context window in tokens'))
    .addOption(new Option('--format <json>', '"json", or a JSON schema that the answer must fit').argParser(format))
    .option('--think', 'let a model that can do so think first')
    .option('--no-think', 'do not let it think')
    .addOption(
      new Option('--keep-alive <time>', 'how long the model stays loaded afterwards: 10m, 0, or -1 for ever').argParser(
        keepAlive
      )
    )
    .option('--verbose', 'print token counts and speed after each answer, on standard error')
    .addHelpText(
      'after',
      `
Text from a pipe is the prompt; given both, the pipe's text follows the prompt after a blank line. The answer goes to
standard output and all else to standard error. In a chat, /? lists what can be typed; Ctrl-C stops an answer and
Ctrl-D leaves. When no server runs, one is started and ends with this command.

Examples:
  corral run corral/tiny-chat
  corral run corral/tiny-chat "What is the capital of France?" --temperature 0
  git diff | corral run me/coder "Write a commit message for this change:"
  corral run me/model "Three colours as a JSON list" --format json`
    )
    .action((model: string, words: string[], options: RunOptions) =>
      run(context, settingsOf(model, options), words, options)
    )
}

function settingsOf(model: string, given: RunOptions): ChatSettings {
  const { temperature, topP, topK, seed, maxTokens, numCtx } = given
  const options = { temperature, top_p: topP, top_k: topK, seed, max_tokens: maxTokens, num_ctx: numCtx }
  return {
    model,
    options: Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as Record<
      string,
      number
    >,
    system: given.system,
    format: given.format,
    think: given.think,
    keepAlive: given.keepAlive
  }
}

async function run(context: CommandContext, settings: ChatSettings, words: string[], { verbose = false }: RunOptions) {
  const { stdin, stdout } = process
  const parts = [words.join(' '), stdin.isTTY ? '' : await readAll(stdin)]
  const prompt = parts.filter(part => part.trim() !== '').join('\n\n')
  const chatting = prompt === '' && stdin.isTTY && stdout.isTTY
  if (prompt === '' && !chatting) {
    throw new CommandFailure(EXIT.usage, 'There is no prompt. Give one behind the model, or through a pipe.')
  }
  const onStart = () =>
    process.stderr.write(
      'No server is running; starting one for this chat. It ends with it; "corral serve" keeps one running.\n'
    )
  await withServer(
    context,
    'usual',
    async ({ client }) => {
      const conversation = createConversation(client, settings)
      await load(conversation)
      if (!chatting) return await answerOnce(conversation, prompt, verbose)
      const { chatInTerminal } = await import('../chat-terminal.ts')
      stdout.write(`Chatting with ${settings.model}. /? shows help.\n`)
      await chatInTerminal(conversation, { verbose })
    },
    { onStart }
  )
}

/** Loads the model with its progress shown, which an answer's own heartbeats tell only now and then. */
async function load(conversation: Conversation): Promise<void> {
  const line = showProgress('loading', 'nothing')
  try {
    await conversation.load(text => line.update(text))
  } finally {
    line.clear()
  }
}

async function answerOnce(conversation: Conversation, prompt: string, verbose: boolean): Promise<void> {
  const printer = printAnswer()
  try {
    const counters = await conversation.ask(prompt, printer)
    printer.end()
    if (counters && verbose) process.stderr.write(`\n${formatCounters(counters)}\n`)
  } catch (error) {
    printer.end()
    throw error
  }
}

async function readAll(stream: NodeJS.ReadStream): Promise<string> {
  const signal = interruption()
  const giveUp = () => stream.destroy()
  signal.addEventListener('abort', giveUp)
  try {
    const chunks: Buffer[] = []
    for await (const chunk of stream) chunks.push(Buffer.from(chunk))
    return Buffer.concat(chunks).toString('utf8').trimEnd()
  } catch (error) {
    signal.throwIfAborted()
    throw new CommandFailure(EXIT.failure, `Standard input cannot be read: ${messageOf(error)}.`, error)
  } finally {
    signal.removeEventListener('abort', giveUp)
  }
}

function number(flags: string, description: string): Option {
  return new Option(flags, description).argParser(text => {
    const value = Number(text)
    if (text.trim() === '' || !Number.isFinite(value)) throw new InvalidArgumentError('It must be a number.')
    return value
  })
}

function whole(flags: string, description: string): Option {
  return new Option(flags, description).argParser(text => {
    const value = Number(text)
    if (text.trim() === '' || !Number.isSafeInteger(value)) throw new InvalidArgumentError('It must be a whole number.')
    return value
  })
}

function format(text: string): unknown {
  if (text === 'json') return text
  try {
    const schema: unknown = JSON.parse(text)
    if (typeof schema === 'object' && schema !== null && !Array.isArray(schema)) return schema
  } catch {
    // Told below, together with what is JSON but no schema.
  }
  throw new InvalidArgumentError('It must be json, or a JSON schema such as {"type":"object"}.')
}

function keepAlive(text: string): string {
  if (parseDuration(text) === undefined)
    throw new InvalidArgumentError('It must be seconds or a time such as 10m or 1h30m.')
  return text
}
