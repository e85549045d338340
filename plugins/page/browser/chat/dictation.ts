import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { announce, notify } from '../parts/controls.tsx'
import { ask } from '../state/api.ts'
import { speechModel } from '../state/server-state.ts'
import { labelFor, texts } from '../texts/texts.ts'

/** Whether the browser offers a microphone. It does not over plain HTTP from another machine. */
export const canRecord = 'MediaRecorder' in globalThis && navigator.mediaDevices !== undefined

/** Records speech, and passes its text on. The state is empty while nothing is dictated. */
export function useDictation(onText: (text: string) => void) {
  const state = useSignal<'' | 'asking' | 'recording' | 'transcribing'>('')
  const cancel = useRef<AbortController>(undefined)
  const end = useRef<() => void>(undefined)
  const begin = async () => {
    const controller = new AbortController()
    const { signal } = controller
    cancel.current = controller
    state.value = 'asking'
    try {
      const { record } = await import('./recorder.ts')
      const file = await record(signal, stop => {
        end.current = stop
        state.value = 'recording'
        announce(texts.peek().dictation.recording)
      })
      state.value = 'transcribing'
      announce(texts.peek().dictation.transcribing)
      const body = new FormData()
      body.set('model', speechModel('transcribe').name)
      body.set('file', file, 'speech.wav')
      const { text } = await ask<{ text: string }>('POST', 'v1/audio/transcriptions', { body, signal })
      if (text.trim() === '') notify(texts.peek().nothingHeard, true)
      else onText(text.trim())
    } catch (error) {
      const { name, message } = error as Error
      if (!signal.aborted) notify(labelFor(texts.peek().microphoneFaults, name, message), true)
    }
    if (cancel.current === controller) state.value = ''
  }
  /** Ends the recording, or gives up if there is none yet or its text is awaited. */
  const stop = () => {
    if (state.peek() === 'recording') return end.current?.()
    cancel.current?.abort()
    state.value = ''
  }
  useEffect(() => () => cancel.current?.abort(), [])
  useEffect(() => {
    if (state.value === '') return
    // Before others, which would stop the answer.
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== 'Escape' || event.isComposing || document.querySelector('dialog[open]')) return
      event.stopPropagation()
      stop()
    }
    addEventListener('keydown', onKey, true)
    return () => removeEventListener('keydown', onKey, true)
  }, [state.value])
  return { state, toggle: () => (state.peek() === '' ? void begin() : stop()) }
}

/** Adds a dictated text to a field in place of its selection. @returns the whole text */
export function insertText(field: HTMLTextAreaElement, text: string): string {
  const before = field.value.slice(0, field.selectionStart)
  const gap = /[^\s\p{Script=Han}\p{Ps}，。！？：；]$/u.test(before) ? ' ' : ''
  field.setRangeText(gap + text, field.selectionStart, field.selectionEnd, 'end')
  field.focus()
  return field.value
}
