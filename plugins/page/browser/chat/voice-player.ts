import { ask, send } from '../state/api.ts'
import { speechModel } from '../state/server-state.ts'
import { shownLanguage, texts } from '../texts/texts.ts'

/** Maximum characters that are spoken at once, unless one sentence is longer. */
const MAX_PIECE_LENGTH = 300
/** A text without sentences is split here, since servers limit the length. */
const MAX_SENTENCE_LENGTH = 2000

/** Speaks paragraphs one after the other with a model's voice. @throws ApiError; the reason of the signal */
export async function play(paragraphs: readonly string[], signal: AbortSignal): Promise<void> {
  const pieces = paragraphs.flatMap(splitText)
  const model = await voiceFor(pieces.join(' '))
  const player = new Audio()
  const speak = async (input: string | undefined) =>
    input && (await send('POST', 'v1/audio/speech', { body: { model, input, response_format: 'mp3' }, signal })).blob()
  let next = speak(pieces[0])
  for (let at = 0; at < pieces.length; at++) {
    const sound = await next
    next = speak(pieces[at + 1])
    // It fails when it is awaited.
    next.catch(() => undefined)
    if (sound) await playSound(player, sound, signal)
  }
}

async function playSound(player: HTMLAudioElement, sound: Blob, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted()
  player.src = URL.createObjectURL(sound)
  try {
    await new Promise<unknown>((resolve, reject) => {
      player.onended = resolve
      player.onerror = () => reject(new Error(texts.peek().notPlayable))
      signal.onabort = () => reject(signal.reason)
      player.play().catch(reject)
    })
  } finally {
    player.pause()
    URL.revokeObjectURL(player.src)
  }
}

/** Splits a paragraph into pieces of whole sentences. The first one is a single sentence, to begin soon. */
function splitText(paragraph: string): string[] {
  const pieces: string[] = []
  for (const { segment } of new Intl.Segmenter(undefined, { granularity: 'sentence' }).segment(paragraph)) {
    const last = pieces.at(-1) ?? ''
    if (pieces.length > 1 && last.length + segment.length <= MAX_PIECE_LENGTH) pieces[pieces.length - 1] += segment
    else pieces.push(...(segment.match(new RegExp(`.{1,${MAX_SENTENCE_LENGTH}}`, 'gsu')) ?? []))
  }
  return pieces.filter(piece => /[\p{L}\p{N}]/u.test(piece))
}

/** Returns the chosen model, otherwise one that speaks the language of the text. */
async function voiceFor(text: string): Promise<string> {
  const { name, names, isChosen } = speechModel('speak')
  if (isChosen || names.length < 2) return name
  const language = /\p{Script=Han}/u.test(text) ? 'zh' : shownLanguage.peek() === 'zh' ? 'en' : shownLanguage.peek()
  const { data } = await ask<{ data: { model: string; language?: string }[] }>('GET', 'v1/audio/voices')
  return data.find(voice => voice.language?.startsWith(language))?.model ?? name
}
