import { signal } from '@preact/signals'
import type { ComponentChildren, ComponentType } from 'preact'
import { useEffect } from 'preact/hooks'

/**
 * A component that is loaded when it is first rendered.
 * @param placeholder shown until it is loaded
 * @param failed shown if it cannot be loaded
 */
export function later<Props extends object>(
  load: () => Promise<ComponentType<Props>>,
  placeholder: () => ComponentChildren = () => null,
  failed = placeholder
): ComponentType<Props> {
  const loaded = signal<ComponentType<Props> | undefined>(undefined)
  const isFailed = signal(false)
  return function Later(props: Props) {
    useEffect(() => {
      load().then(
        component => (loaded.value = component),
        () => (isFailed.value = true)
      )
    }, [])
    if (loaded.value) return <loaded.value {...props} />
    return <>{isFailed.value ? failed() : placeholder()}</>
  }
}

/** A view with a title and, if it has several parts, links to them. */
export function PageView(props: {
  title: string
  tabs?: readonly { text: string; href: string; isCurrent: boolean }[]
  aside?: ComponentChildren
  children: ComponentChildren
}) {
  return (
    <main class="view page-view">
      <div class="page-column">
        <header class="page-head">
          <h1>{props.title}</h1>
          {props.aside}
        </header>
        {props.tabs && (
          <nav class="tabs" aria-label={props.title}>
            {props.tabs.map(({ text, href, isCurrent }) => (
              <a key={href} href={href} aria-current={isCurrent ? 'page' : undefined}>
                {text}
              </a>
            ))}
          </nav>
        )}
        {props.children}
      </div>
    </main>
  )
}

/** Something missing or irrelevant, which is left out. */
type Nothing = undefined | false | '' | 0

/** Joins the known facts about something in one line. */
export const joinFacts = (facts: readonly (string | Nothing)[]): string => facts.filter(Boolean).join(' · ')

/** An item of a list: a title with facts, buttons beside it, and more below. */
export function Card(props: {
  title: string
  facts: readonly (string | Nothing)[]
  about?: ComponentChildren
  fault?: string | undefined
  actions?: ComponentChildren
  children?: ComponentChildren
  class?: string
}) {
  return (
    <li class={`card ${props.class ?? ''}`}>
      <div class="row">
        <div class="grow">
          <h2>{props.title}</h2>
          <p class="quiet">{joinFacts(props.facts)}</p>
          {props.about && <p>{props.about}</p>}
          <Fault text={props.fault} />
        </div>
        <div class="row card-actions">{props.actions}</div>
      </div>
      {props.children}
    </li>
  )
}

/** An error, if there is one. @param isAnnounced whether screen readers read it immediately */
export function Fault({ text, isAnnounced }: { text: string | undefined; isAnnounced?: boolean }) {
  if (!text) return null
  return (
    <p class="is-error" role={isAnnounced ? 'alert' : undefined}>
      {text}
    </p>
  )
}

/** Terms with their values. Terms without a value are left out. */
export function Facts({ facts }: { facts: readonly (readonly [term: string, value: ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {facts.map(
        ([term, value]) =>
          value && (
            <>
              <dt>{term}</dt>
              <dd>{value}</dd>
            </>
          )
      )}
    </dl>
  )
}

type Row = readonly ComponentChildren[]

/** A table that scrolls in its own frame if it is too wide. @param total last row, which starts with a heading */
export function Table({ head, rows, total }: { head: readonly string[]; rows: readonly Row[]; total?: Row }) {
  const cells = (row: Row) => row.map((cell, index) => <td key={index}>{cell}</td>)
  return (
    <div class="table-frame" tabIndex={0}>
      <table class="data-table">
        <thead>
          <tr>
            {head.map(title => (
              <th key={title}>{title}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>{cells(row)}</tr>
          ))}
          {total && (
            <tr class="total">
              <th scope="row">{total[0]}</th>
              {cells(total.slice(1))}
            </tr>
          )}
        </tbody>
      </table>
    </div>
  )
}

export function More(props: { title: string; class?: string; children: ComponentChildren }) {
  return (
    <details>
      <summary class={props.class}>{props.title}</summary>
      {props.children}
    </details>
  )
}
