import { join } from 'node:path'
import { findHome } from '../../core/config/config-file.ts'
import { errorMessage } from '../../core/errors.ts'
import { dataPaths } from '../../core/system/data-paths.ts'
import type { ChatSession } from '../chat-session.ts'
import type { ChatSettings } from '../chat-settings.ts'
import { failure, interruption, misuse } from '../command-failure.ts'
import { type CommandContext, modelArgument, type Options } from '../context.ts'
import { printNote } from '../output.ts'
import { showProgress } from '../progress-display.ts'
import { type ServerClient, ServerRefusal } from '../server-client.ts'
import { withServer } from '../server-connection.ts'

/** Options with the names and values of chat settings. The code of `/set` validates them. */
const SETTINGS = ['temperature', 'topP', 'topK', 'seed', 'maxTokens', 'numCtx', 'format', 'keepAlive'] as const

type RunOptions = Options<'think' | 'verbose' | 'raw' | 'yes', (typeof SETTINGS)[number] | 'system'>

async function parseSettings(model: string, given: RunOptions, env: NodeJS.ProcessEnv): Promise<ChatSettings> {
  const { applySetting } = await import('../chat-settings.ts')
  const { system, think, verbose = false, raw = false } = given
  const history = !['off', 'false', 'no', '0'].includes(env.CORRAL_HISTORY?.trim().toLowerCase() ?? '')
  const settings: ChatSettings = { model, system, think, options: {}, verbose, raw, history }
  for (const name of SETTINGS) {
    const text = given[name]
    const snakeCase = name.replace(/[A-Z]/g, letter => `_${letter.toLowerCase()}`)
    if (text !== undefined) applySetting(settings, snakeCase, text)
  }
  return settings
}

export async function run(context: CommandContext, named: string | undefined, words: string[], options: RunOptions) {
  if (named !== undefined) modelArgument(named)
  const { stdin, stdout } = process
  if (named === undefined && !(stdin.isTTY && stdout.isTTY)) {
    throw misuse(
      'No model was given. Use: corral run <model> [prompt]. At a terminal, "corral run" lets you choose one.'
    )
  }
  const settings = await parseSettings(named ?? '', options, context.env)
  const parts = [words.join(' '), stdin.isTTY ? '' : await readAll(stdin)]
  const prompt = parts.filter(part => part.trim() !== '').join('\n\n')
  const chatting = prompt === '' && stdin.isTTY && stdout.isTTY
  if (prompt === '' && !chatting) throw misuse('There is no prompt. Add one after the model, or pipe one in.')
  const { yes = false } = options
  await withServer(context, 'usual', async ({ client, own }) => {
    const started = 'No server is running, so one was started that stops with this chat.'
    if (own) printNote(`${started} Keep one running with "corral serve".`)
    if (named === undefined) settings.model = await (await import('../model-choice.ts')).pickModel(client)
    const { ChatSession } = await import('../chat-session.ts')
    const session = new ChatSession(client, settings)
    if (!chatting) return await answerOnce(client, session, prompt, yes)
    await pullIfMissing(client, session, yes, () => session.about())
    // The question must be asked before the chat takes over the terminal.
    if ((await session.about()).details.format === 'safetensors') await loadConverted(client, session, yes)
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

async function answerOnce(client: ServerClient, session: ChatSession, prompt: string, yes: boolean): Promise<void> {
  await pullIfMissing(client, session, yes, () => loadConverted(client, session, yes))
  const { verbose, raw, format } = session.settings
  const [{ printAnswer }, { cutText }] = await Promise.all([import('../print-answer.ts'), import('../chat-session.ts')])
  const ended = await printAnswer(session, prompt, { verbose, raw })
  const cut = ended && cutText(ended, false)
  if (cut === undefined) return
  if (format === undefined) return printNote(`note: ${cut}`)
  throw failure(`The JSON is incomplete. ${cut}`)
}

/** Runs work with the model, and again after pulling it if it is missing. */
async function pullIfMissing(client: ServerClient, session: ChatSession, yes: boolean, work: () => Promise<unknown>) {
  try {
    await work()
  } catch (error) {
    if (!(error instanceof ServerRefusal) || error.code !== 'model_not_found') throw error
    const { offerPull } = await import('../model-choice.ts')
    session.settings.model = await offerPull(client, session.settings.model, error, yes)
    await work()
  }
}

/** Loads a model that may need conversion, and offers to install the converter. */
async function loadConverted(client: ServerClient, session: ChatSession, yes: boolean): Promise<void> {
  const { withConverter } = await import('./stored-models.ts')
  await withConverter(client, yes, () => load(session))
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
