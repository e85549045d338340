import { type Command, InvalidArgumentError } from 'commander'
import { messageOf } from '../../core/errors.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { ChatSession, type ChatSettings } from '../chat-session.ts'
import { CommandFailure, EXIT, interruption } from '../command-failure.ts'
import { type CommandContext, modelArgument } from '../context.ts'
import { printNote } from '../output.ts'
import { showProgress } from '../progress-display.ts'
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
  raw?: boolean
}

export function defineRun(program: Command, context: CommandContext): void {
  program
    .command('run')
    .description('chat with a model, or get one answer')
    .argument('<model>', 'owner/name or owner/name:variant', modelArgument)
    .argument('[prompt...]', 'one question; without it, and at a terminal, a chat')
    .option('--system <text>', 'instructions for the model')
    .option('--temperature <number>', 'randomness; 0 always picks the likeliest token', number)
    .option('--top-p <number>', 'keep the likeliest tokens with this total probability', number)
    .option('--top-k <number>', 'keep this many of the likeliest tokens', whole)
    .option('--seed <number>', 'repeats a random answer; -1 gives a new one each time', whole)
    .option('--max-tokens <number>', 'longest answer; -1 is as long as the context allows', whole)
    .option('--num-ctx <number>', 'context window in tokens', whole)
    .option('--format <json>', '"json", or a JSON schema that the answer must match', format)
    .option('--think', 'let the model think first, if it can')
    .option('--no-think', 'do not let it think')
    .option('--keep-alive <time>', 'how long the model stays loaded afterwards: 10m, 0, or -1 for no limit', keepAlive)
    .option('--raw', 'print the answer as the model writes it, without laying out its Markdown')
    .option('--verbose', 'print token counts and speed after each answer, to standard error')
    .addHelpText(
      'after',
      `
Text from a pipe is the prompt; with both, the pipe's text follows the prompt after a blank line. The answer goes to
standard output and everything else to standard error. In a chat, /? lists the commands; Ctrl-C stops an answer and
Ctrl-D leaves. When no server runs, one is started and stops with this command.

Examples:
  corral run corral/tiny-chat
  corral run corral/tiny-chat "What is the capital of France?" --temperature 0
  git diff | corral run me/coder "Write a commit message for this change:"
  corral run me/model "Three colours as a JSON list" --format json`
    )
    .action((model: string, words: string[], options: RunOptions) => run(context, model, words, options))
}

function settingsOf(model: string, given: RunOptions): ChatSettings {
  const { temperature, topP, topK, seed, maxTokens, numCtx, system, format, think, keepAlive } = given
  const options = { temperature, top_p: topP, top_k: topK, seed, max_tokens: maxTokens, num_ctx: numCtx }
  const set = Object.entries(options).filter((entry): entry is [string, number] => entry[1] !== undefined)
  return { model, options: Object.fromEntries(set), system, format, think, keepAlive }
}

async function run(context: CommandContext, model: string, words: string[], options: RunOptions) {
  const { stdin, stdout } = process
  const { verbose = false, raw } = options
  const parts = [words.join(' '), stdin.isTTY ? '' : await readAll(stdin)]
  const prompt = parts.filter(part => part.trim() !== '').join('\n\n')
  const chatting = prompt === '' && stdin.isTTY && stdout.isTTY
  if (prompt === '' && !chatting) {
    throw new CommandFailure(EXIT.usage, 'There is no prompt. Put one after the model, or send one through a pipe.')
  }
  await withServer(context, 'usual', async ({ client, own }) => {
    if (own) {
      printNote('No server is running; started one that stops with this chat. "corral serve" keeps one running.')
    }
    const session = new ChatSession(client, settingsOf(model, options))
    await load(session)
    const [{ chatInTerminal }, { printAnswer }] = await Promise.all([
      import('../chat.ts'),
      import('../print-answer.ts')
    ])
    if (!chatting) return await printAnswer(session, prompt, { verbose, raw })
    stdout.write(`Chatting with ${model}. /? shows help.\n`)
    await chatInTerminal(session, { verbose, raw })
  })
}

/** Loads the model and shows the progress, which the heartbeats of an answer report only now and then. */
async function load(session: ChatSession): Promise<void> {
  const progress = await showProgress('loading', { plain: 'nothing' })
  try {
    await session.load(text => progress.status(text))
  } finally {
    progress.clear()
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

function number(text: string): number {
  const value = Number(text)
  if (text.trim() === '' || !Number.isFinite(value)) throw new InvalidArgumentError('It must be a number.')
  return value
}

function whole(text: string): number {
  if (/^\s*[+-]?\d+\s*$/.test(text) && Number.isSafeInteger(Number(text))) return Number(text)
  throw new InvalidArgumentError('It must be a whole number.')
}

function format(text: string): unknown {
  if (text === 'json') return text
  try {
    const schema: unknown = JSON.parse(text)
    if (typeof schema === 'object' && schema !== null && !Array.isArray(schema)) return schema
  } catch {
    // Reported below, together with JSON that is no schema.
  }
  throw new InvalidArgumentError('It must be json, or a JSON schema such as {"type":"object"}.')
}

function keepAlive(text: string): string {
  if (parseDuration(text) !== undefined) return text
  throw new InvalidArgumentError('It must be seconds, or a time such as 10m or 1h30m.')
}
