import { existsSync } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { nearest } from '../core/config/suggestion.ts'
import type { LocalModel } from '../core/contracts/native-records.ts'
import { baseText, type ChatSession } from './chat-session.ts'
import {
  applySetting,
  describeSettings,
  findSetting,
  SETTING_NAMES,
  shownSetting,
  shownSettings
} from './chat-settings.ts'
import { CommandFailure, misuse } from './command-failure.ts'
import { formatModel } from './commands/stored-models.ts'
import { formatPairs, printable, printText, relativeTime, wrapLines } from './output.ts'
import { showProgress } from './progress-display.ts'
import type { PromptHistory } from './prompt-history.ts'
import { readImage, typedPath } from './prompt-images.ts'
import type { SavedChats } from './saved-chats.ts'
import type { ServerClient } from './server-client.ts'

export interface Chat {
  client: ServerClient
  session: ChatSession
  history: PromptHistory
  saved: SavedChats
  /** Name under which this conversation was last saved or loaded. */
  savedAs: string | undefined
  /** @returns whether the prompt was answered */
  answer(prompt: string): Promise<boolean>
  /** Aborted by Ctrl-C during a command. */
  stopped: AbortSignal
}

interface ChatCommand {
  /** Names without the slash. The first one is shown in help. */
  names: readonly string[]
  /** Placeholder for the argument in help. */
  takes?: string
  help: string
  /** Completions for the last of the words after the name. */
  complete?(chat: Chat, words: string[]): Promise<string[]> | string[]
  /** @param text everything after the name @returns true, or a promise of true, to end the chat */
  run(chat: Chat, text: string): unknown
}

const SHOWN = ['model', 'system', 'template', 'license']
export const say = (text: string) => printText(wrapLines(printable(text)))

const COMMANDS: readonly ChatCommand[] = [
  {
    names: ['set'],
    takes: '<name> <value>',
    help: 'change a setting; without a name, list all settings; the value "default" resets one',
    complete: (_chat, words) => (words.length === 1 ? SETTING_NAMES : words.length === 2 ? valuesOf(words[0]!) : []),
    run: ({ session }, text) => set(session, text)
  },
  {
    names: ['show'],
    takes: '[what]',
    help: `show the current settings; or ${SHOWN.join(', ')}`,
    complete: (_chat, words) => (words.length === 1 ? SHOWN : []),
    run: (chat, text) => show(chat, text)
  },
  {
    names: ['model'],
    takes: '[name]',
    help: 'switch to another model; without a name, list the models',
    complete: async (chat, words) =>
      words.length === 1 ? (await chatModels(chat.client)).map(({ name }) => name) : [],
    run: (chat, text) => (text === '' ? listModels(chat) : switchModel(chat, text))
  },
  {
    names: ['regenerate', 'retry'],
    takes: '[seed]',
    help: 'regenerate the last answer',
    run: (chat, text) => regenerate(chat, text)
  },
  {
    names: ['image'],
    takes: '<path>',
    help: 'send an image with the next message',
    complete: (_chat, words) => filesFor(words.join(' ')),
    run: (chat, text) => attach(chat, text)
  },
  {
    names: ['save'],
    takes: '[name]',
    help: 'save the conversation',
    complete: ({ saved }, words) => (words.length === 1 ? saved.names() : []),
    run: (chat, text) => save(chat, text)
  },
  {
    names: ['load'],
    takes: '[name]',
    help: 'load a saved conversation; without a name, list them',
    complete: ({ saved }, words) => (words.length === 1 ? saved.names() : []),
    run: (chat, text) => (text === '' ? listSaved(chat.saved) : load(chat, text))
  },
  {
    names: ['clear'],
    help: 'clear the conversation',
    run(chat) {
      chat.session.restore([])
      chat.savedAs = undefined
      say('The conversation was cleared.')
    }
  },
  { names: ['help', '?'], help: 'show this help', run: () => say(help()) },
  { names: ['bye', 'exit', 'quit'], help: 'leave', run: () => true }
]

const NAMES = COMMANDS.flatMap(({ names }) => names)
const called = (name: string) => COMMANDS.find(({ names }) => names.includes(name.toLowerCase()))

function help(): string {
  const commands = COMMANDS.map(({ names, takes, help }): [string, string] => [
    `/${names[0]}${takes ? ` ${takes}` : ''}`,
    help
  ])
  return formatPairs([
    ...commands,
    ['"""', 'start and end a text of several lines; a "\\" at the end of a line, or Alt-Enter, continues it too'],
    ['Tab', 'complete commands, settings and names'],
    ['Ctrl-C', 'stop an answer; at the prompt, press twice to leave'],
    ['Ctrl-D', 'leave']
  ])
}

/**
 * Parses a line that starts with a slash. A first word that looks like a command is treated as text only if it is the
 * path of a file, such as `/etc/hosts`, so that a mistyped command is never sent to the model.
 */
export function readCommand(line: string) {
  const [, name, rest] = /^\/([A-Za-z?][\w?-]*)(?:\s+([\s\S]*))?$/.exec(line.trim()) ?? []
  if (name === undefined) return { kind: 'prompt' as const }
  const command = called(name)
  if (command) {
    const run = async (chat: Chat) => {
      if (rest && !command.takes) throw misuse(`/${name} takes no arguments, but got "${rest.slice(0, 60)}".`)
      return (await command.run(chat, rest ?? '')) === true
    }
    return { kind: 'command' as const, run }
  }
  if (existsSync(`/${name}`)) return { kind: 'prompt' as const }
  // A typo must not lead to a command that clears the conversation.
  const near = nearest(
    name,
    NAMES.filter(one => one !== 'clear')
  )
  const quoted = rest === undefined ? '' : ' To send the line as text, put it between """ and """.'
  const hint = near ? `Did you mean /${near}?` : '/? lists the commands.'
  return { kind: 'unknown' as const, message: `There is no command /${name}. ${hint}${quoted}` }
}

/** Completions for the text before the cursor, and the part of the text that they replace. */
export async function completeLine(chat: Chat, text: string): Promise<[offers: string[], replaced: string]> {
  const [, name, gap, rest = ''] = /^\/([\w?-]*)(\s+)?([\s\S]*)$/.exec(text) ?? []
  if (name === undefined) return [[], text]
  if (gap === undefined) {
    const offers = COMMANDS.map(({ names, takes }) => `/${names[0]}${takes ? ' ' : ''}`)
    return [rest === '' ? offers.filter(offer => offer.startsWith(text.toLowerCase())) : [], text]
  }
  const command = called(name)
  const words = rest.split(/\s+/)
  const last = command?.names[0] === 'image' ? rest : words.at(-1)!
  const all = (await command?.complete?.(chat, words)) ?? []
  const offers = all.filter(offer => offer.toLowerCase().startsWith(last.toLowerCase()))
  const ends = command?.names[0] === 'set' && words.length === 1 ? ' ' : ''
  return [offers.map(offer => offer + ends), last]
}

function valuesOf(spelled: string): string[] {
  const setting = findSetting(spelled)
  return setting ? [...(setting.values ?? []), 'default'] : []
}

function set(session: ChatSession, text: string): void {
  const [, name, value] = /^(\S+)(?:\s+([\s\S]*))?$/.exec(text) ?? []
  if (name === undefined) {
    say(`${formatPairs(describeSettings())}\n\nChange one with: /set <name> <value>. The value "default" resets it.`)
    return
  }
  const setting = findSetting(name)
  if (value === undefined && setting) {
    const now = shownSetting(session.settings, name)
    say(`${name} must be ${setting.allowed}; ${now === undefined ? 'it is not set' : `it is ${now}`}.`)
    return
  }
  const known = applySetting(session.settings, name, value ?? '')
  session.settingChanged(known)
  const now = shownSetting(session.settings, known)
  say(now === undefined ? `${known} is reset to its default.` : `${known} is ${now}`)
}

async function show({ session, savedAs }: Chat, what: string): Promise<void> {
  const { settings } = session
  const topic = what.toLowerCase()
  if (topic === '') {
    const { turns, unsent, images } = session
    const { system } = await session.about()
    const messages = `${2 * turns.length} messages${unsent > 0 ? `, of which the ${unsent} oldest are no longer sent` : ''}`
    say(
      formatPairs([
        ['model', settings.model],
        ['conversation', savedAs === undefined ? messages : `${messages}; saved as ${savedAs}`],
        ['context', await session.contextUse()],
        ['images', images.length > 0 ? `${images.length} for the next message` : undefined],
        ['system', settings.system === undefined && system ? `${system} (the model's default)` : undefined],
        ...shownSettings(settings)
      ])
    )
    return
  }
  if (!SHOWN.includes(topic)) {
    const near = nearest(topic, SHOWN)
    throw misuse(`/show cannot show "${what}". ${near ? `Did you mean ${near}?` : `It shows ${SHOWN.join(', ')}.`}`)
  }
  const about = await session.about()
  if (topic === 'model') return void say(formatModel(about, new Date()))
  const text = topic === 'system' ? (settings.system ?? about.system) : about[topic as 'template' | 'license']
  printText(text ? printable(text) : `The model has no ${topic === 'system' ? 'system message' : topic}.`)
}

export async function chatModels(client: ServerClient): Promise<LocalModel[]> {
  const { models } = await client.json<{ models: LocalModel[] }>('GET', '/api/tags')
  return models.filter(({ capabilities }) => capabilities.includes('completion'))
}

async function listModels({ client, session }: Chat): Promise<void> {
  const current = session.settings.model.toLowerCase()
  const lines = (await chatModels(client)).map(({ name }) => `${name.toLowerCase() === current ? '*' : ' '} ${name}`)
  say(lines.join('\n') || 'There are no models on this server.')
}

async function switchModel(chat: Chat, model: string): Promise<void> {
  await loadingWith(chat, model)
  const { turns } = chat.session
  if (await chat.session.isBase()) say(baseText(model))
  else say(`Now chatting with ${model}${turns.length > 0 ? ', which gets the conversation so far' : ''}.`)
}

async function loadingWith({ session, stopped }: Chat, model: string): Promise<void> {
  const progress = await showProgress(`loading ${model}`, { plain: 'nothing' })
  try {
    await session.switchTo(model, text => progress.status(text), stopped)
  } finally {
    progress.clear()
  }
}

async function regenerate(chat: Chat, text: string): Promise<void> {
  if (text !== '' && !/^\d{1,15}$/.test(text)) throw misuse(`The seed must be a whole number; got ${text}.`)
  const { options } = chat.session.settings
  const random = Math.floor(Math.random() * 2 ** 31)
  // The same fixed seed would give the same answer.
  const seed = text !== '' ? Number(text) : options.seed === undefined ? undefined : random
  const again = chat.session.takeBack(seed)
  if (!again) throw misuse('There is no message to answer again yet.')
  if (options.temperature === 0) say('The temperature is 0, so the answer will probably be the same.')
  if (!(await chat.answer(again.prompt))) again.restore()
}

async function attach({ session }: Chat, text: string): Promise<void> {
  if (text === '') throw misuse('Name an image: /image <path>')
  await requireVision(session)
  const path = typedPath(text)
  session.images.push(readImage(path))
  say(`${path} will be sent with the next message.`)
}

/** @throws CommandFailure if the model cannot see images */
export async function requireVision(session: ChatSession): Promise<void> {
  const { capabilities } = await session.about()
  if (capabilities.includes('vision')) return
  throw misuse(
    `${session.settings.model} cannot see images. Use a model with vision ("/show model" lists a model's capabilities).`
  )
}

/** Files and folders that complete a typed path. */
async function filesFor(typed: string): Promise<string[]> {
  const folder = typed.slice(0, typed.lastIndexOf('/') + 1)
  const entries = await readdir(typedPath(folder === '' ? './' : folder), { withFileTypes: true })
  const hidden = typed.slice(folder.length).startsWith('.')
  return entries
    .filter(({ name }) => hidden || !name.startsWith('.'))
    .filter(entry => !entry.isFile() || /\.(png|jpe?g|gif|bmp|webp)$/i.test(entry.name))
    .map(entry => folder + entry.name.replace(/[\s"'\\]/g, '\\$&') + (entry.isFile() ? '' : '/'))
}

async function save(chat: Chat, text: string): Promise<void> {
  const { session, saved } = chat
  const [, name = chat.savedAs, force] = /^(\S+?)(!?)$/.exec(text) ?? []
  if (name === undefined || (text !== '' && force === undefined)) {
    throw misuse('Name the conversation with letters and digits: /save <name>')
  }
  if (session.turns.length === 0) throw misuse('There is nothing to save yet.')
  const there = force === '!' || name === chat.savedAs ? undefined : await saved.read(name)
  if (there) {
    const when = relativeTime(there.saved_at, new Date())
    throw misuse(
      `A conversation named ${name} already exists (${2 * there.turns.length} messages, saved ${when}). Replace it with: /save ${name}!`
    )
  }
  const { model, system, options, format, think } = session.settings
  // JSON omits undefined values.
  await saved.write(name, { model, system, options, format, think, turns: session.turns })
  chat.savedAs = name
  say(`The conversation (${2 * session.turns.length} messages) is saved. Continue it with: /load ${name}`)
}

async function listSaved(saved: SavedChats): Promise<void> {
  const names = await saved.names()
  if (names.length === 0) return void say('There are no saved conversations. Save this one with: /save <name>')
  const lines = await Promise.all(
    names.map(async (name): Promise<[string, string]> => {
      try {
        const chat = await saved.read(name)
        if (!chat) return [name, '']
        return [name, `${2 * chat.turns.length} messages, ${chat.model}, ${relativeTime(chat.saved_at, new Date())}`]
      } catch {
        return [name, 'cannot be read; /load shows the reason']
      }
    })
  )
  say(formatPairs(lines))
}

async function load(chat: Chat, name: string): Promise<void> {
  const { session, saved } = chat
  const kept = await saved.read(name)
  if (!kept) {
    const names = await saved.names()
    const near = nearest(name, names)
    const hint = near ? `Did you mean ${near}?` : '/load lists the saved ones.'
    throw misuse(`There is no saved conversation ${name}. ${hint}`)
  }
  const { settings } = session
  let trouble = ''
  Object.assign(settings, { system: kept.system, options: { ...kept.options }, format: kept.format, think: kept.think })
  session.restore(kept.turns)
  chat.savedAs = name
  try {
    await loadingWith(chat, kept.model)
  } catch (error) {
    if (!(error instanceof CommandFailure)) throw error
    trouble = ` ${kept.model} cannot be used (${error.message}), so the conversation continues with ${settings.model}.`
  }
  say(`Loaded ${name}: ${2 * kept.turns.length} messages, ${settings.model}.${trouble}`)
  const last = session.turns.at(-1)
  if (last) printText(printable(`\n>>> ${last.prompt}\n${last.answer.trimEnd()}\n`))
}
