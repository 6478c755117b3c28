"""Models and their selection from sums: normal equations, leave-one-out, class priors, pools."""
