import { useState } from 'preact/hooks'
import { key, useKey } from '../state/api.ts'
import { texts } from '../texts/texts.ts'

/** Asks for a key and covers the page, since nothing works without it. */
export function KeyDialog() {
  const t = texts.value
  const [text, setText] = useState('')
  return (
    <div class="key-dialog" role="dialog" aria-modal="true" aria-label={t.keyTitle}>
      <form
        class="dialog-body"
        onSubmit={event => {
          event.preventDefault()
          if (text.trim()) useKey(text.trim())
        }}
      >
        <h2>{t.keyTitle}</h2>
        {key.value !== '' && (
          <p class="is-error" role="alert">
            {t.keyWrong}
          </p>
        )}
        <p>{t.keyText}</p>
        <label>
          {t.keyField}
          <input
            type="password"
            class="field"
            autocomplete="off"
            value={text}
            ref={field => field?.focus()}
            onInput={event => setText(event.currentTarget.value)}
          />
        </label>
        <button type="submit" class="button is-main" disabled={text.trim() === ''}>
          {t.keyUse}
        </button>
      </form>
    </div>
  )
}
