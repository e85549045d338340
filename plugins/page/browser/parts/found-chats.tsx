import type { ComponentChild, ComponentType } from 'preact'
import { useEffect, useMemo, useState } from 'preact/hooks'
import type { Chat } from '../state/chat-format.ts'
import { type Hit, patternOf } from '../state/chat-search.ts'
import { sortedChats } from '../state/chats.ts'
import { searchMessages, seek } from '../state/search-messages.ts'

/** A chat that was found, with marked words. */
export interface FoundChat {
  title: ComponentChild
  passage: ComponentChild
  /** Shows the message that was found. The chat must be shown, too. */
  seek(): void
}

export type Found = ReadonlyMap<Chat, FoundChat>

/** A list of the found chats. */
export function FoundChats({ wanted, list: List }: { wanted: string; list: ComponentType<{ found: Found }> }) {
  return <List found={useFoundChats(wanted)} />
}

/** Messages are searched after this many milliseconds without a key press. */
const SEARCH_DELAY = 200
const NO_HITS: ReadonlyMap<string, Hit> = new Map()
/** Cached, so that only changed lines of a list are rendered again. */
const known = new WeakMap<Chat, { pattern: RegExp | undefined; hit: Hit | undefined; found: FoundChat }>()

/** Finds the chats whose title or messages contain the words. Titles match immediately, messages a moment later. */
export function useFoundChats(wanted: string): Found {
  const pattern = useMemo(() => patternOf(wanted), [wanted])
  const [hits, setHits] = useState(NO_HITS)
  useEffect(() => {
    setHits(NO_HITS)
    if (!pattern) return
    const ended = new AbortController()
    const timer = setTimeout(() => searchMessages(pattern, ended.signal, setHits), SEARCH_DELAY)
    return () => {
      ended.abort()
      clearTimeout(timer)
    }
  }, [pattern])
  const words = wanted.toLowerCase().trim()
  const found = new Map<Chat, FoundChat>()
  for (const chat of sortedChats.value) {
    const hit = hits.get(chat.id)
    if (!hit && !(pattern?.test(chat.title) ?? chat.title.toLowerCase().includes(words))) continue
    const before = known.get(chat)
    const isSame = before && before.pattern === pattern && before.hit === hit
    const next = isSame ? before.found : foundChat(chat, pattern, hit)
    known.set(chat, { pattern, hit, found: next })
    found.set(chat, next)
  }
  return found
}

const foundChat = ({ title }: Chat, pattern: RegExp | undefined, hit: Hit | undefined): FoundChat => ({
  title: title && marked(title, pattern),
  passage: hit && <small dir="auto">{marked(hit.passage, pattern)}</small>,
  seek: () => hit && void seek(hit.message)
})

/** Marks matches. @param pattern with one group around the match */
const marked = (text: string, pattern: RegExp | undefined): ComponentChild =>
  pattern ? text.split(pattern).map((part, at) => (at % 2 > 0 ? <mark key={at}>{part}</mark> : part)) : text
