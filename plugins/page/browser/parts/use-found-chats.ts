import { useEffect, useState } from 'preact/hooks'
import { findInMessages, sortedChats } from '../state/chats.ts'
import type { Chat } from '../state/conversation-tree.ts'

/** Milliseconds without another key before messages are searched. */
const DELAY = 200

/** The chats whose titles or messages have some words: those by title at once, the others a moment later. */
export function useFoundChats(wanted: string): Chat[] {
  const words = wanted.toLowerCase().trim()
  const [inTexts, setInTexts] = useState<ReadonlySet<string>>(new Set())
  useEffect(() => {
    setInTexts(new Set())
    if (words.length < 2) return
    let isGone = false
    const timer = setTimeout(async () => {
      const found = await findInMessages(words)
      if (!isGone) setInTexts(found)
    }, DELAY)
    return () => {
      isGone = true
      clearTimeout(timer)
    }
  }, [words])
  return sortedChats.value.filter(({ id, title }) => title.toLowerCase().includes(words) || inTexts.has(id))
}
