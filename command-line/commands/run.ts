import { join } from 'node:path'
import { findHome } from '../../core/config/config-file.ts'
import { errorMessage } from '../../core/errors.ts'
import { dataPaths } from '../../core/system/data-paths.ts'
import type { ChatSession } from '../chat-session.ts'
import type { ChatSettings } from '../chat-settings.ts'
import { CommandFailure, EXIT, failure, interruption } from '../command-failure.ts'
import { type CommandContext, modelArgument } from '../context.ts'
import { printNote } from '../output.ts'
import { showProgress } from '../progress-display.ts'
import { ServerRefusal } from '../server-client.ts'
import { type ServerConnection, withServer } from '../server-connection.ts'

/** Values are unparsed text. The code of `/set` validates them. */
interface RunOptions {
  system?: string
  temperature?: string
  topP?: string
  topK?: string
  seed?: string
  maxTokens?: string
  numCtx?: string
  format?: string
  think?: boolean
  keepAlive?: string
  verbose?: boolean
  raw?: boolean
  yes?: boolean
}

async function parseSettings(model: string, given: RunOptions, env: NodeJS.ProcessEnv): Promise<ChatSettings> {
  const { applySetting } = await import('../chat-settings.ts')
  const {
    temperature,
    topP,
    topK,
    seed,
    maxTokens,
    numCtx,
    system,
    format,
    think,
    keepAlive,
    verbose = false,
    raw = false
  } = given
  const history = !['off', 'false', 'no', '0'].includes(env.CORRAL_HISTORY?.trim().toLowerCase() ?? '')
  const settings: ChatSettings = { model, system, think, options: {}, verbose, raw, history }
  const texts = { temperature, top_p: topP, top_k: topK, seed, max_tokens: maxTokens, num_ctx: numCtx, format }
  for (const [name, text] of Object.entries({ ...texts, keep_alive: keepAlive })) {
    if (text !== undefined) applySetting(settings, name, text)
  }
  return settings
}

export async function run(
  context: CommandContext,
  named: string | undefined,
  words: string[],
  options: RunOptions
): Promise<void> {
  if (named !== undefined) modelArgument(named)
  const { stdin, stdout } = process
  if (named === undefined && !(stdin.isTTY && stdout.isTTY)) {
    throw new CommandFailure(
      EXIT.usage,
      'No model was given. Use: corral run <model> [prompt]. At a terminal, "corral run" lets you choose one.'
    )
  }
  const settings = await parseSettings(named ?? '', options, context.env)
  const parts = [words.join(' '), stdin.isTTY ? '' : await readAll(stdin)]
  const prompt = parts.filter(part => part.trim() !== '').join('\n\n')
  const chatting = prompt === '' && stdin.isTTY && stdout.isTTY
  if (prompt === '' && !chatting) {
    throw new CommandFailure(EXIT.usage, 'There is no prompt. Add one after the model, or pipe one in.')
  }
  await withServer(context, 'usual', async connection => {
    const { client, own } = connection
    if (own) {
      printNote(
        'No server is running, so one was started that stops with this chat. Keep one running with "corral serve".'
      )
    }
    if (named === undefined) settings.model = await (await import('../model-choice.ts')).pickModel(client)
    const { ChatSession } = await import('../chat-session.ts')
    const session = new ChatSession(client, settings)
    if (!chatting) return await answerOnce(connection, session, prompt, options)
    await beHere(connection, session, options)
    // The question must be asked before the chat takes over the terminal.
    if ((await session.about()).details.format === 'safetensors') await loadConverted(connection, session, options)
    const { home } = dataPaths(findHome({ ...context, flags: context.flags() }).home, undefined)
    const [{ chatInTerminal }, { PromptHistory }, { SavedChats }] = await Promise.all([
      import('../chat.ts'),
      import('../prompt-history.ts'),
      import('../saved-chats.ts')
    ])
    const history = new PromptHistory(join(home, 'chat-history.jsonl'))
    const chat = { client, session, history, saved: new SavedChats(join(home, 'chats')) }
    await chatInTerminal(chat, signal => load(session, signal))
  })
}

async function answerOnce(connection: ServerConnection, session: ChatSession, prompt: string, options: RunOptions) {
  const { client } = connection
  try {
    await loadConverted(connection, session, options)
  } catch (error) {
    if (!isMissing(error)) throw error
    const { offerPull } = await import('../model-choice.ts')
    session.settings.model = await offerPull(client, session.settings.model, error, options.yes === true)
    await loadConverted(connection, session, options)
  }
  const { verbose, raw, format } = session.settings
  const [{ printAnswer }, { cutText }] = await Promise.all([import('../print-answer.ts'), import('../chat-session.ts')])
  const ended = await printAnswer(session, prompt, { verbose, raw })
  const cut = ended && cutText(ended, false)
  if (cut === undefined) return
  if (format === undefined) return printNote(`note: ${cut}`)
  throw failure(`The JSON is incomplete. ${cut}`)
}

async function beHere({ client }: ServerConnection, session: ChatSession, options: RunOptions): Promise<void> {
  try {
    await session.about()
  } catch (error) {
    if (!isMissing(error)) throw error
    const { offerPull } = await import('../model-choice.ts')
    session.settings.model = await offerPull(client, session.settings.model, error, options.yes === true)
  }
}

const isMissing = (error: unknown): error is ServerRefusal =>
  error instanceof ServerRefusal && error.code === 'model_not_found'

/** Loads a model that may need conversion, and offers to install the converter. */
async function loadConverted({ client }: ServerConnection, session: ChatSession, options: RunOptions): Promise<void> {
  const { withConverter } = await import('../converter-offer.ts')
  await withConverter(client, options.yes === true, () => load(session))
}

/** Loads the model and shows more progress than the heartbeats of an answer report. */
async function load(session: ChatSession, signal?: AbortSignal): Promise<void> {
  const progress = await showProgress('loading', { plain: 'nothing' })
  let noted = process.stderr.isTTY
  const status = (text: string) => {
    progress.status(text)
    if (noted || !/^(downloading|unpacking|configuring|building) .*llama/.test(text)) return
    // Without a note, minutes of silence would look as if nothing happened.
    noted = true
    printNote(`note: preparing llama.cpp for this machine (${text}). This takes a few minutes, once.`)
  }
  try {
    await session.load(status, signal)
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
    throw failure(`Standard input cannot be read: ${errorMessage(error)}.`, error)
  } finally {
    signal.removeEventListener('abort', giveUp)
  }
}
